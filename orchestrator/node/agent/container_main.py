"""The agent as the main process of a container, behind the engine's init: warm first, then like any other agent."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ...model import container
from .. import warm_up
from ..files import label
from ..keeper.container_node import READY
from ..oslayer import forks
from . import agent, container_setup


def main(directory: Path) -> int:
    """Become the node that the environment names (``model/container.py``); ends with the container."""
    mine = json.loads(os.environ.pop(container.LABEL_VARIABLE))
    container_setup.settle()
    forks.redirect(directory / "agent.log")
    warm_up.load()
    mine["frozen"] = warm_up.freeze()

    def ready() -> None:
        label.write(directory / READY, {"incarnation": mine["incarnation"], "pid": os.getpid()})

    return agent.main(directory, mine, {}, ready)
