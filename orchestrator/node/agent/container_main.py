"""The main process of a container, behind the engine's init: prepares the environment, then becomes the node's agent."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from pathlib import Path

from ...model import container
from ...system import plain_files
from .. import warm_up
from ..files import label
from ..oslayer import forks
from . import agent

#: Enough open files for data loaders, NCCL and the sockets of a large world; a lower hard limit applies.
OPEN_FILES = 65536
DIRECTORIES = ("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def main(directory: Path) -> int:
    """Become the node that the environment names (``model/container.py``); ends with the container."""
    node_label = json.loads(os.environ.pop(container.LABEL_VARIABLE))
    _make_directories()
    _raise_open_files_limit()
    forks.redirect_output(directory / "agent.log")
    warm_up.import_modules()
    node_label["frozen"] = warm_up.freeze_objects()

    def ready() -> None:
        plain_files.write_json(directory / label.READY, {"incarnation": node_label["incarnation"], "pid": os.getpid()})

    return agent.main(directory, node_label, {}, ready)


def _make_directories() -> None:
    """Make the directories that the environment names, such as HOME."""
    for name in (name for name in DIRECTORIES if os.environ.get(name)):
        with contextlib.suppress(OSError):
            os.makedirs(os.environ[name], mode=0o700, exist_ok=True)


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
