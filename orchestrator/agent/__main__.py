"""Entry of the archive, one role each: ``keeper`` on a host, ``node`` as the main process of a container."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import checks, forks, keeper, main_process


def main(arguments: Sequence[str]) -> int:
    """Become what is asked for."""
    parser = argparse.ArgumentParser(prog="agent.pyz")
    roles = parser.add_subparsers(dest="role", required=True)
    _keeper_options(roles.add_parser("keeper"))
    roles.add_parser("node").add_argument("--directory", type=Path, required=True)
    check = roles.add_parser("check")
    check.add_argument("op")
    check.add_argument("arguments")
    options = parser.parse_args(arguments)
    if options.role == "node":
        return main_process.main(options.directory)
    if options.role == "check":
        return checks.main(options.op, options.arguments)
    return _keep(options)


def _keeper_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--bed", required=True)
    parser.add_argument("--archive", required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--backend", choices=["processes", "containers", "outside"], default="processes")
    parser.add_argument("--engine", default="/var/run/docker.sock")
    parser.add_argument("--owner", default="")


def _keep(options: argparse.Namespace) -> int:
    """Detach, then become the keeper. The exit code is the launcher's: 0 once the keeper runs on its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    os.chdir(options.workdir)
    forks.redirect(options.workdir / "keeper" / "keeper.log")
    return keeper.main(
        options.workdir,
        options.bed,
        options.archive,
        lambda: _say_ready(options.ready),
        backend=options.backend,
        engine=options.engine,
        owner=options.owner,
    )


def _say_ready(fd: int) -> None:
    os.write(fd, b"ready\n")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
