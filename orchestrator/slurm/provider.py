"""The provider of beds whose nodes run in a job of Slurm, opened by its name."""

from __future__ import annotations

from pathlib import Path

from ..model.provider import Provider
from . import slurm_provider


def open_provider(state: Path) -> Provider:
    return slurm_provider.SlurmProvider(state)
