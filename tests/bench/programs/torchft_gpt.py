# mypy: ignore-errors
# torchft has no types, and is not installed where this is checked.
"""The small GPT of the examples under torchft: every node is a replica group of one worker; survivors go on.

The command for ``ccbed run --launcher`` is in tests/bench/test_systems.py.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torchft
import torchft.ddp

sys.path.insert(0, os.environ["CCBED_EXAMPLES"])
from gpt import GPT, Text, batches, cosine, loss_of, options


def main():
    args = options(__doc__, "gpt-torchft.pt")
    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    torch.manual_seed(0)
    text = Text(args.length)
    model = GPT(len(text.characters), args.length, args.size, args.dropout, args.activation_checkpoints)
    inner = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(inner, cosine(args))

    def state():
        return {"model": model.state_dict(), "optimizer": inner.state_dict(), "scheduler": scheduler.state_dict()}

    def load(states):
        model.load_state_dict(states["model"])
        inner.load_state_dict(states["optimizer"])
        scheduler.load_state_dict(states["scheduler"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"group-{group}",
        timeout=timedelta(seconds=20),
    )
    ddp = torchft.ddp.PureDistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    loader = iter(batches(text, args, group, groups, 0))
    while manager.current_step() < args.steps:
        tokens, targets = next(loader)
        optimizer.zero_grad()
        loss = loss_of(ddp(tokens), targets)
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        step = manager.current_step()
        if step > before:
            scheduler.step()
        if step % 10 == 0:
            print(
                f"group {group} step {step} participants {manager.num_participants()} loss {loss.item():.4f}",
                flush=True,
            )
        if group == 0 and step > before and step % args.save_every == 0:
            save(args.checkpoint, step, state())
    manager.shutdown(wait=False)


def save(path: Path, step, states):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save({"step": step, **states}, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
