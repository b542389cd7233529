"""A small GPT and its text, for the example scripts beside this file."""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Sampler

# Layers, heads and width. The state is 12 bytes a parameter: weights and both moments of AdamW in float32.
SIZES = {
    "tiny": (4, 4, 32),
    "small": (4, 4, 128),
    "1gb": (12, 12, 768),
    "4gb": (28, 16, 1024),
}


class Text(Dataset):
    """Windows of ``length`` characters of text.txt, and the same windows one character later."""

    def __init__(self, length):
        text = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
        self.characters = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.characters)}
        self.tokens = torch.tensor([numbers[character] for character in text])
        self.length = length

    def __len__(self):
        return len(self.tokens) - self.length

    def __getitem__(self, index):
        window = self.tokens[index : index + self.length + 1]
        return window[:-1], window[1:]


class StepSampler(Sampler):
    """The windows of one rank from ``first_step`` on: a function of seed, rank and step, so the step is the data position."""

    def __init__(self, windows, batch, rank, world, first_step, steps, seed=0):
        self.windows, self.batch, self.rank, self.world = windows, batch, rank, world
        self.first_step, self.steps, self.seed = first_step, steps, seed

    def __len__(self):
        return self.steps - self.first_step

    def __iter__(self):
        for step in range(self.first_step, self.steps):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            chosen = torch.randint(self.windows, (self.world, self.batch), generator=generator)
            yield chosen[self.rank].tolist()


class Block(nn.Module):
    def __init__(self, heads, width, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return functional.dropout(x, self.dropout, self.training)

    def attend(self, x):
        # Heads are counted from the tensor, so that a tensor-parallel layer may hold some of them.
        batch, length, _ = x.shape
        size = self.query.out_features // self.heads
        split = [part(x).view(batch, length, -1, size).transpose(1, 2) for part in (self.query, self.key, self.value)]
        y = functional.scaled_dot_product_attention(*split, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, -1))


class GPT(nn.Module):
    """A decoder-only transformer. ``forward(tokens)``: (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self, vocabulary, length, size="tiny", dropout=0.1, activation_checkpoints=False):
        super().__init__()
        layers, heads, width = SIZES[size]
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(heads, width, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.activation_checkpoints = activation_checkpoints

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.activation_checkpoints else block(x)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(text, options, rank, world, first_step):
    """The batches of one rank from ``first_step`` on. The loader has a generator of its own: it draws no number of the training."""
    count = options.steps * options.accumulate
    sampler = StepSampler(len(text), options.batch, rank, world, first_step * options.accumulate, count)
    return DataLoader(text, batch_sampler=sampler, generator=torch.Generator())


def cosine(options):
    """The factor of the learning rate: a warm-up over 5 steps, then a cosine down to a tenth at the last step."""
    return lambda step: min(1.0, (step + 1) / 5) * (0.55 + 0.45 * math.cos(math.pi * step / max(1, options.steps)))


def start(with_gloo=False):
    """Join the ranks; return this rank's device, its number, and the number of ranks. ``with_gloo``: beside NCCL, for saves."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(("cpu:gloo,cuda:nccl" if with_gloo else "nccl") if on_gpu else "gloo")
    return device, dist.get_rank(), dist.get_world_size()


def newest_save(path, device):
    """The last step whose folder has .metadata, which the coordinator writes last; 0 without one. Rank 0 decides for all."""
    steps = [int(file.parent.name.removeprefix("step-")) for file in path.glob("step-*/.metadata")]
    chosen = torch.tensor(max(steps, default=0), device=device)
    dist.broadcast(chosen, 0)
    return int(chosen)


def save_folder(path, step):
    return str(path / f"step-{step:06d}")


def options(description, checkpoint_path):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and backward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    parser.add_argument("--length", type=int, default=64, help="characters per sequence")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=Path(checkpoint_path))
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; weights stay float32")
    parser.add_argument("--activation-checkpoints", action="store_true")
    return parser.parse_args()
