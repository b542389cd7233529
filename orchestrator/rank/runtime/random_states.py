"""The random generators of a rank: torch's defaults on the CPU and its GPU, and the workload's; saved and restored."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..checkpoint import tensor_digest
from . import seeds


class Generators:
    """``own``: the workload's generator, on the rank's device. It is created on first use, so that a GPU is not initialised before."""

    def __init__(self, seed: int, rank: int, device: torch.device) -> None:
        self._seed, self._rank, self._device = seed, rank, device
        self._own: torch.Generator | None = None

    @property
    def own(self) -> torch.Generator:
        if self._own is None:
            self._own = torch.Generator(self._device)
            self._own.manual_seed(seeds.derive(self._seed, "generator", self._rank))
        return self._own

    def states(self) -> dict[str, torch.Tensor]:
        """Every state by name, as uint8 on the CPU; ``cuda`` only on a GPU."""
        states = {"torch": torch.get_rng_state(), "generator": self.own.get_state()}
        return {**states, "cuda": torch.cuda.get_rng_state(self._device)} if self._device.type == "cuda" else states

    def restore(self, states: Mapping[str, torch.Tensor]) -> None:
        """Set the states that ``states`` returned, on a device of the same kind."""
        torch.set_rng_state(states["torch"])
        self.own.set_state(states["generator"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self._device)

    def digests(self) -> dict[str, str]:
        return {f"rng.{name}": tensor_digest.tensor(state) for name, state in self.states().items()}
