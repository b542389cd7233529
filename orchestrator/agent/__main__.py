"""Entry of the archive: ``python agent.pyz keeper --workdir W --bed B --archive HASH --ready FD``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import forks, keeper


def main(arguments: Sequence[str]) -> int:
    """Detach, then become the keeper. The exit code is the launcher's: 0 once the keeper runs on its own."""
    parser = argparse.ArgumentParser(prog="agent.pyz")
    parser.add_argument("role", choices=["keeper"])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--bed", required=True)
    parser.add_argument("--archive", required=True)
    parser.add_argument("--ready", type=int, required=True)
    options = parser.parse_args(arguments)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    os.chdir(options.workdir)
    forks.redirect(options.workdir / "keeper" / "keeper.log")
    return keeper.main(options.workdir, options.bed, options.archive, lambda: _say_ready(options.ready))


def _say_ready(fd: int) -> None:
    os.write(fd, b"ready\n")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
