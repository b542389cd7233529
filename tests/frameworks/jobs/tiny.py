"""A small model and its data, the same for every framework."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, dropout=0.1, width=64):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, width), nn.Linear(width, width), nn.Linear(width, 8)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.c(torch.relu(self.b(self.drop(torch.relu(self.a(x))))))


class Data(torch.utils.data.Dataset):
    def __init__(self, count=1280):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(count, 32, generator=generator)
        self.y = torch.randint(0, 8, (count,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place], self.y[place]
