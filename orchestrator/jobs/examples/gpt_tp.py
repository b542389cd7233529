"""Train a small GPT whose layers are split over all ranks (tensor parallel); distributed checkpoints, resumed from the newest.

torchrun --nproc-per-node 2 gpt_tp.py --steps 60
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import GPT, Text, batches, cosine, loss_of, newest_save, options, save_folder, start
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main():
    args = options(__doc__, "gpt-tp")
    device, rank, world = start()

    torch.manual_seed(0)
    text = Text(args.length)
    # Every rank computes the same sequences, so their dropout has to be the same: all ranks share one random state.
    model = GPT(len(text.characters), args.length, args.size, args.dropout, args.activation_checkpoints).to(device)
    split(model, init_device_mesh(device.type, (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, foreach=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args))
    step = load(args.checkpoint, model, optimizer, scheduler, device)
    if rank == 0 and step:
        print(f"resumed from step {step}", flush=True)

    loader = iter(batches(text, args, 0, 1, step))
    while step < args.steps:
        loss = train_step(model, optimizer, loader, args, device)
        scheduler.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % args.save_every == 0:
            dcp.save(state(step, model, optimizer, scheduler), checkpoint_id=save_folder(args.checkpoint, step))
    dist.barrier()
    dist.destroy_process_group()


def split(model, mesh):
    """Split each block's projections by columns, and the layers that follow them by rows: one all-reduce after each pair."""
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    rows = dict.fromkeys(("output", "down"), RowwiseParallel())
    for block in model.blocks:
        parallelize_module(block, mesh, {**columns, **rows})


def train_step(model, optimizer, loader, args, device):
    optimizer.zero_grad(set_to_none=True)
    for _ in range(args.accumulate):
        tokens, targets = (tensor.to(device) for tensor in next(loader))
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = loss_of(model(tokens), targets)
        (loss / args.accumulate).backward()
    optimizer.step()
    return loss.item()


def state(step, model, optimizer, scheduler):
    weights, moments = get_state_dict(model, optimizer)
    generator = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()
    progress = {"step": torch.tensor(step), "scheduler": scheduler.state_dict(), "generator": generator}
    return {"model": weights, "optimizer": moments, **progress}


def load(path, model, optimizer, scheduler, device):
    """Restore the newest complete save, if there is one, and return its step."""
    step = newest_save(path, device)
    if step:
        saved = state(0, model, optimizer, scheduler)
        dcp.load(saved, checkpoint_id=save_folder(path, step))
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        (torch.cuda if torch.cuda.is_available() else torch).set_rng_state(saved["generator"])
    return step


if __name__ == "__main__":
    main()
