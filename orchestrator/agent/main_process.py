"""The agent as the main process of a container, behind the engine's init: warm first, then like any other agent."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..model import container
from . import agent, forks, home, label, warmth
from .contained import READY


def main(directory: Path) -> int:
    """Become the node that the environment names (``model/container.py``); ends with the container."""
    mine = json.loads(os.environ.pop(container.LABEL_VARIABLE))
    home.settle()
    forks.redirect(directory / "agent.log")
    warmth.load()
    mine["frozen"] = warmth.freeze()

    def ready() -> None:
        label.write(directory / READY, {"incarnation": mine["incarnation"], "pid": os.getpid()})

    return agent.main(directory, mine, {}, ready)
