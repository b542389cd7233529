"""What the main process of a container sees to before it serves: a home that exists, and enough open files."""

from __future__ import annotations

import contextlib
import os
import resource

#: Loaders of data, NCCL and sockets of a large world; where the hard limit is lower, that.
FILES = 65536
DIRECTORIES = ("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def settle() -> None:
    """Make the directories that the environment names, and raise the limit of open files as far as it may be."""
    for name in (name for name in DIRECTORIES if os.environ.get(name)):
        with contextlib.suppress(OSError):
            os.makedirs(os.environ[name], mode=0o700, exist_ok=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
