"""Train a small GPT as a pipeline of one stage per rank; each stage saves its own file, and a tracker file names the last save.

torchrun --nproc-per-node 2 gpt_pp.py --steps 60
"""

import os

import torch
import torch.distributed as dist
from gpt import GPT, Text, batches, cosine, loss_of, options, start
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Stage(nn.Module):
    """The blocks of one stage, with the embedding at the beginning and the head at the end."""

    def __init__(self, gpt, rank, world):
        super().__init__()
        first, last = len(gpt.blocks) * rank // world, len(gpt.blocks) * (rank + 1) // world
        self.token, self.position = (gpt.token, gpt.position) if rank == 0 else (None, None)
        self.blocks = nn.ModuleDict({str(number): gpt.blocks[number] for number in range(first, last)})
        self.norm, self.head = (gpt.norm, gpt.head) if rank == world - 1 else (None, None)

    def forward(self, x):
        if self.token is not None:
            x = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.head is not None else x


def main():
    args = options(__doc__, "gpt-pp")
    if torch.__version__ < (2, 5):  # stages find out the shapes of their inputs only since then
        raise SystemExit(f"gpt-pp needs torch 2.5 or newer (got {torch.__version__})")
    device, rank, world = start()

    torch.manual_seed(0)
    text = Text(args.length)
    model = Stage(GPT(len(text.characters), args.length, args.size, args.dropout), rank, world).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args))
    torch.manual_seed(1 + rank)
    step = load(args.checkpoint, model, optimizer, scheduler, device)
    if rank == 0 and step:
        print(f"resumed from step {step}", flush=True)

    stage = PipelineStage(model, rank, world, device)
    schedule = ScheduleGPipe(stage, n_microbatches=max(2, args.accumulate), loss_fn=loss_of)
    loader = iter(batches(text, args, 0, 1, step))
    while step < args.steps:
        loss = train_step(schedule, optimizer, loader, args, device)
        scheduler.step()
        step += 1
        if rank == world - 1 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % args.save_every == 0:
            save(args.checkpoint, step, model, optimizer, scheduler)
    dist.barrier()
    dist.destroy_process_group()


def train_step(schedule, optimizer, loader, args, device):
    """Every stage reads the same batches: the first uses the tokens, the last the targets."""
    optimizer.zero_grad(set_to_none=True)
    parts = [next(loader) for _ in range(args.accumulate)]
    tokens = torch.cat([part[0] for part in parts]).to(device)
    targets = torch.cat([part[1] for part in parts]).to(device)
    losses = []
    if dist.get_rank() == 0:
        schedule.step(tokens)
    elif dist.get_rank() == dist.get_world_size() - 1:
        schedule.step(target=targets, losses=losses)
    else:
        schedule.step()
    optimizer.step()
    return sum(loss.item() for loss in losses) / max(1, len(losses))


def save(path, step, model, optimizer, scheduler):
    """Every stage writes its file; when all are complete, rank 0 names the step in the tracker file."""
    folder = path / f"step-{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    random_states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])
    snapshot = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "generators": random_states,
    }
    torch.save(snapshot, folder / f"stage-{dist.get_rank()}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        temporary = path / "latest.tmp"
        temporary.write_text(folder.name)
        os.replace(temporary, path / "latest")


def load(path, model, optimizer, scheduler, device):
    """Restore this stage from the save that the tracker file names, and return its step."""
    tracker = path / "latest"
    if not tracker.exists():
        return 0
    snapshot = torch.load(
        path / tracker.read_text() / f"stage-{dist.get_rank()}.pt", map_location="cpu", weights_only=True
    )
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    scheduler.load_state_dict(snapshot["scheduler"])
    torch.set_rng_state(snapshot["generators"][0])
    if len(snapshot["generators"]) > 1:
        torch.cuda.set_rng_state(snapshot["generators"][1], device)
    return snapshot["step"]


if __name__ == "__main__":
    main()
