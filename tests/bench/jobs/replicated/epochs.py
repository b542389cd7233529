"""DDP with a Trainer class: a snapshot after every epoch, always in the same file, as in the tutorials of PyTorch."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.model, self.loader, self.optimizer, self.snapshot_path = model, loader, optimizer, snapshot_path
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            self._load_snapshot()
        self.ddp = DDP(self.model)

    def _load_snapshot(self):
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])  # restores weights
        self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])  # restores optimizer
        self.epochs_run = snapshot["EPOCHS_RUN"]  # restores data
        print(f"Resuming training from snapshot at epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        states = {"MODEL_STATE": self.model.state_dict(), "OPTIMIZER_STATE": self.optimizer.state_dict()}
        torch.save(states | {"EPOCHS_RUN": epoch + 1}, self.snapshot_path)

    def _run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for source, targets in self.loader:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.ddp(source), targets)
            loss.backward()
            self.optimizer.step()

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                self._save_snapshot(epoch)
            dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--every", type=int, default=4, help="steps of an epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    size = args.every * 8 * dist.get_world_size()
    dataset = TensorDataset(torch.rand(size, 20), torch.randint(0, 4, (size,)))
    model = nn.Sequential(nn.Linear(20, args.width), nn.GELU(), nn.Linear(args.width, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset), generator=torch.Generator())
    os.makedirs("checkpoints", exist_ok=True)
    Trainer(model, loader, optimizer, "checkpoints/snapshot.pt").train(args.steps // args.every + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
