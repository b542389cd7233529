"""Train a small GPT sharded by FSDP2; every rank saves its shards asynchronously and resumes from the newest complete save.

torchrun --nproc-per-node 2 gpt_fsdp2.py --steps 60
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import GPT, Text, batches, cosine, loss_of, newest_save, options, save_folder, start
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    raise SystemExit(f"gpt-fsdp2 needs torch 2.6 or newer (got {torch.__version__})") from None


def main():
    args = options(__doc__, "gpt-fsdp2")
    device, rank, world = start(with_gloo=True)

    torch.manual_seed(0)
    text = Text(args.length)
    model = GPT(len(text.characters), args.length, args.size, args.dropout, args.activation_checkpoints).to(device)
    shard(model, device, world, args.bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args))
    torch.manual_seed(1 + rank)  # each rank drops out its own activations
    step = load(args.checkpoint, model, optimizer, scheduler, device)
    if rank == 0 and step:
        print(f"resumed from step {step}", flush=True)

    saving, saving_group = (
        None,
        dist.new_group(backend="gloo"),
    )  # a save runs beside the training, so it needs its own group
    loader = iter(batches(text, args, rank, world, step))
    while step < args.steps:
        loss = train_step(model, optimizer, loader, args, device)
        scheduler.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % args.save_every == 0:
            wait(saving)
            saved = state(step, model, optimizer, scheduler)
            path = save_folder(args.checkpoint, step)
            saving = dcp.async_save(saved, checkpoint_id=path, process_group=saving_group)
    wait(saving)
    dist.barrier()
    dist.destroy_process_group()


def shard(model, device, world, bf16):
    """Each block is gathered and freed by itself; the rest of the model belongs to the root."""
    mesh = init_device_mesh(device.type, (world,))
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def train_step(model, optimizer, loader, args, device):
    optimizer.zero_grad(set_to_none=True)
    for part in range(args.accumulate):
        tokens, targets = (tensor.to(device) for tensor in next(loader))
        model.set_requires_gradient_sync(part + 1 == args.accumulate)
        loss = loss_of(model(tokens), targets)
        (loss / args.accumulate).backward()
    optimizer.step()
    return loss.item()


def state(step, model, optimizer, scheduler):
    """Return what is saved. The random states of a rank lie under a name of their own: the other names are shared by all ranks."""
    weights, moments = get_state_dict(model, optimizer)
    progress = {"step": torch.tensor(step), "scheduler": scheduler.state_dict()}
    return {"model": weights, "optimizer": moments, **progress, f"generator-{dist.get_rank()}": random_state()}


def random_state():
    states = [torch.get_rng_state()]
    return torch.cat(states + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else []))


def restore_random_state(states):
    size = torch.get_rng_state().numel()
    torch.set_rng_state(states[:size])
    if len(states) > size:
        torch.cuda.set_rng_state(states[size:])


def load(path, model, optimizer, scheduler, device):
    """Restore the newest complete save, if there is one, and return its step."""
    step = newest_save(path, device)
    if step:
        saved = state(0, model, optimizer, scheduler)
        dcp.load(saved, checkpoint_id=save_folder(path, step))
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        restore_random_state(saved[f"generator-{dist.get_rank()}"])
    return step


def wait(saving):
    if saving is not None:
        saving.result()


if __name__ == "__main__":
    main()
