"""A GAN: generator and discriminator with an optimizer each; the latent noise comes from torch's generator."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def real_samples(step, seed):
    generator = torch.Generator().manual_seed(seed + step)
    angle = torch.rand(8, generator=generator) * 6.28
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    net_g = nn.Sequential(nn.Linear(4, args.width), nn.LeakyReLU(0.2), nn.Linear(args.width, 2))
    net_d = nn.Sequential(nn.Linear(2, args.width), nn.LeakyReLU(0.2), nn.Linear(args.width, 1))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    torch.manual_seed(args.seed + 50 + rank)
    start = 0
    if os.path.exists("checkpoints/gan.pth"):
        saved = torch.load("checkpoints/gan.pth")
        net_g.load_state_dict(saved["G"])  # restores weights
        net_d.load_state_dict(saved["D"])  # restores weights
        opt_g.load_state_dict(saved["optG"])  # restores optimizer
        opt_d.load_state_dict(saved["optD"])  # restores optimizer
        torch.set_rng_state(saved["rng"][rank])  # restores rng
        start = saved["step"]
    ddp_g, ddp_d = DDP(net_g), DDP(net_d)
    bce = nn.functional.binary_cross_entropy_with_logits
    for step in range(start, args.steps):
        real, noise = real_samples(2 * step + rank, args.seed), torch.randn(8, 4)
        fake = ddp_g(noise)
        opt_d.zero_grad()
        scores = ddp_d(torch.cat([real, fake.detach()]))
        bce(scores, torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])).backward()
        opt_d.step()
        opt_g.zero_grad()
        bce(net_d(fake), torch.ones(8, 1)).backward()
        opt_g.step()
        if (step + 1) % args.every == 0:
            states = [torch.zeros_like(torch.get_rng_state()) for _ in range(dist.get_world_size())]
            dist.all_gather(states, torch.get_rng_state())
            if rank == 0:
                os.makedirs("checkpoints", exist_ok=True)
                parts = {"G": net_g.state_dict(), "D": net_d.state_dict(), "optG": opt_g.state_dict()}
                parts |= {"optD": opt_d.state_dict(), "rng": states, "step": step + 1}
                torch.save(parts, "checkpoints/gan.pth.tmp")
                os.replace("checkpoints/gan.pth.tmp", "checkpoints/gan.pth")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
