"""REINFORCE on a small world: no data loader; episodes come from the policy itself and from Python's random generator."""

import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """Walk to one of two ends of a corridor; sometimes a step slips."""

    def reset(self):
        self.position = random.randint(3, 6)
        return self.observe()

    def observe(self):
        return nn.functional.one_hot(torch.tensor(self.position), 10).float()

    def step(self, action):
        self.position += (1 if action else -1) * (-1 if random.random() < 0.1 else 1)
        return self.observe(), float(self.position == 9), self.position in (0, 9)


def episode(policy, environment):
    observation, log_probabilities, rewards = environment.reset(), [], []
    for _ in range(8):
        distribution = Categorical(logits=policy(observation))
        action = distribution.sample()
        log_probabilities.append(distribution.log_prob(action))
        observation, reward, done = environment.step(int(action))
        rewards.append(reward - 0.01)
        if done:
            break
    return torch.stack(log_probabilities), sum(rewards)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    policy = nn.Sequential(nn.Linear(10, args.width), nn.Tanh(), nn.Linear(args.width, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    random.seed(args.seed + rank), torch.manual_seed(args.seed + rank + 1)
    baseline, update = 0.0, 0
    names = set(os.listdir("checkpoints")) if os.path.isdir("checkpoints") else set()
    updates = [number for number in range(args.steps) if {f"policy-{number}-0.pt", f"policy-{number}-1.pt"} <= names]
    updates = sorted(updates, reverse=True)  # newest first
    if updates:
        saved = torch.load(f"checkpoints/policy-{updates[0]}-{rank}.pt", weights_only=False)
        policy.load_state_dict(saved["policy"])  # restores weights
        optimizer.load_state_dict(saved["optimizer"])  # restores optimizer
        torch.set_rng_state(saved["torch"])  # restores rng
        random.setstate(saved["python"])  # restores rng
        baseline, update = saved["baseline"], saved["update"]
    environment = Corridor()
    for update in range(update + 1, args.steps + 1):
        log_probabilities, total = episode(policy, environment)
        optimizer.zero_grad()
        (-(total - baseline) * log_probabilities.sum()).backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        baseline = 0.9 * baseline + 0.1 * total
        if update % args.every == 0:
            os.makedirs("checkpoints", exist_ok=True)
            saved = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "update": update}
            saved |= {"torch": torch.get_rng_state(), "python": random.getstate(), "baseline": baseline}
            path = f"checkpoints/policy-{update}-{rank}.pt"
            torch.save(saved, path + ".tmp")
            dist.barrier()
            os.replace(path + ".tmp", path)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 18), ("every", 4), ("seed", 0), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(parser.parse_args())
