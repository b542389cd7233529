"""Train a small GPT with DistributedDataParallel; resume from a snapshot that rank 0 writes.

torchrun --nproc-per-node 2 gpt_ddp.py --steps 60
"""

import contextlib
import os

import torch
import torch.distributed as dist
from gpt import GPT, Text, batches, cosine, loss_of, options, start
from torch.nn.parallel import DistributedDataParallel


def main():
    args = options(__doc__, "gpt-ddp.pt")
    device, rank, world = start()

    torch.manual_seed(0)
    text = Text(args.length)
    model = GPT(len(text.characters), args.length, args.size, args.dropout, args.activation_checkpoints).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args))
    torch.manual_seed(1 + rank)  # each rank drops out its own activations
    step = load(args.checkpoint, model, optimizer, scheduler, device)
    if rank == 0 and step:
        print(f"resumed from step {step}", flush=True)
    ddp = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)

    loader = iter(batches(text, args, rank, world, step))
    while step < args.steps:
        loss = train_step(ddp, optimizer, loader, args, device)
        scheduler.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % args.save_every == 0:
            save(args.checkpoint, step, model, optimizer, scheduler)
    del ddp  # before the group: where it is the last to hold a gloo group, its destructor can deadlock in torch
    dist.destroy_process_group()


def train_step(ddp, optimizer, loader, args, device):
    optimizer.zero_grad(set_to_none=True)
    for part in range(args.accumulate):
        tokens, targets = (tensor.to(device) for tensor in next(loader))
        with contextlib.nullcontext() if part + 1 == args.accumulate else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = loss_of(ddp(tokens), targets)
            (loss / args.accumulate).backward()
    optimizer.step()
    return loss.item()


def save(path, step, model, optimizer, scheduler):
    """Rank 0 writes the snapshot to a temporary file and renames it: a file of that name is always complete."""
    generators = [None] * dist.get_world_size()
    dist.all_gather_object(generators, random_states())
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        snapshot = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generators": generators,
        }
        temporary = path.with_suffix(".tmp")
        torch.save(snapshot, temporary)
        os.replace(temporary, path)


def load(path, model, optimizer, scheduler, device):
    """Restore the snapshot if there is one, and return its step."""
    if not path.exists():
        return 0
    snapshot = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    scheduler.load_state_dict(snapshot["scheduler"])
    rank = dist.get_rank()
    if rank < len(snapshot["generators"]):
        restore_random_states(snapshot["generators"][rank], device)
    return snapshot["step"]


def random_states():
    on_gpu = torch.cuda.is_available()
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if on_gpu else None}


def restore_random_states(states, device):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)


if __name__ == "__main__":
    main()
