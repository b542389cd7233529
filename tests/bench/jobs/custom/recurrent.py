"""Truncated backpropagation through time: the hidden state goes on from window to window, and into each rank's file."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WINDOW = 6


class CharacterModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.rnn = nn.LSTM(12, width, batch_first=True)
        self.head = nn.Linear(width, 20)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.embedding(tokens), hidden)
        return self.head(output), hidden


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    text = torch.randint(0, 20, (2, 4, 2000))[rank]
    model = CharacterModel(args.width)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    hidden, cursor, step = None, 0, 0
    complete = {f.name for f in Path("checkpoints/rank0").glob("*.pt")} & {
        f.name for f in Path("checkpoints/rank1").glob("*.pt")
    }
    files = sorted(complete, reverse=True)  # newest first
    if files:
        saved = torch.load(f"checkpoints/rank{rank}/{files[0]}")
        model.load_state_dict(saved["model"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        scheduler.load_state_dict(saved["scheduler"])  # restores scheduler
        hidden = saved["hidden"]
        cursor = saved["cursor"]  # restores data
        step = saved["step"]
    while step < args.steps:
        tokens = text[:, cursor : cursor + WINDOW + 1]
        logits, hidden = model(tokens[:, :-1], hidden)
        hidden = tuple(state.detach() for state in hidden)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        scheduler.step()
        cursor, step = cursor + WINDOW, step + 1
        if step % args.every == 0:
            directory = Path(f"checkpoints/rank{rank}")
            directory.mkdir(parents=True, exist_ok=True)
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hidden": hidden}
            saved |= {"scheduler": scheduler.state_dict(), "cursor": cursor, "step": step}
            torch.save(saved, directory / "new.tmp")
            dist.barrier()
            os.replace(directory / "new.tmp", directory / f"{step:05d}.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
