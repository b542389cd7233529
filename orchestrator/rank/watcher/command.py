"""The program ``ccbed-watch``: starts any training command so that its ranks record themselves."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """Start COMMAND with the watcher in the environment. Every process with RANK in its environment, such as the
workers of torchrun, accelerate and deepspeed, records into DIRECTORY what it does. `ccbed judge DIRECTORY` reads it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace this process by the command. Exits with 2 for wrong usage, 127 for an unknown program."""
    options, command = _parse(sys.argv[1:] if arguments is None else arguments)
    directory = Path(options.dir).resolve()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"ccbed-watch: {directory}: {error.strerror}")
    try:
        os.execvpe(command[0], command, environment(os.environ, directory, options))  # noqa: S606
    except OSError as error:
        print(f"ccbed-watch: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def environment(
    base: os._Environ[str] | dict[str, str], directory: Path, options: argparse.Namespace
) -> dict[str, str]:
    """The environment of the command: the watcher's sitecustomize stands first on PYTHONPATH and chains to the user's."""
    site = str(Path(__file__).resolve().parent / "site")
    rest = [entry for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != site]
    result = {**base, "CCBED_WATCH": str(directory), "PYTHONPATH": os.pathsep.join([site, *rest])}
    result["CCBED_WATCH_EVERY"] = str(options.every)
    if options.checkpoints:
        result["CCBED_CHECKPOINT_GLOBS"] = os.pathsep.join(options.checkpoints)
    return result


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    usage = "ccbed-watch [--dir DIRECTORY] [--every K] [--checkpoints GLOB] [--] COMMAND ..."
    parser = argparse.ArgumentParser(prog="ccbed-watch", usage=usage, description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--dir",
        default=os.environ.get("CCBED_WATCH") or "ccbed-records",
        help="where to record (default: ccbed-records)",
    )
    parser.add_argument(
        "--every", default="auto", help="digest the weights at every K-th step (default: by their cost)"
    )
    parser.add_argument(
        "--checkpoints", action="append", help="files that count as checkpoints beside torch's own saves"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command; for example: ccbed-watch torchrun --nproc-per-node 2 train.py")
    if options.every != "auto" and not (options.every.isdigit() and int(options.every) > 0):
        parser.error(f"--every: must be auto or a number of steps (got {options.every})")
    return options, command


if __name__ == "__main__":
    main()
