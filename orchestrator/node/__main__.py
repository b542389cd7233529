"""Entry point of the agent archive: ``keeper``, ``follow`` (link server), ``reverse`` (links) on a host; ``node`` in a container."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Run one role. Each imports only what it needs."""
    os.umask(0o077)
    parser = argparse.ArgumentParser(prog="agent.pyz", fromfile_prefix_chars="@")
    roles = parser.add_subparsers(dest="role", required=True)
    _keeper_options(roles.add_parser("keeper"))
    _link_server_options(roles.add_parser("follow"))
    _reverse_link_options(roles.add_parser("reverse"))
    roles.add_parser("node").add_argument("--directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    run_role = {"keeper": _run_keeper, "follow": _run_link_server, "reverse": _run_reverse_links, "node": _run_agent}
    result: int = run_role[options.role](options)
    return result


def _keeper_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--bed", required=True)
    parser.add_argument("--archive", required=True)
    parser.add_argument("--ready", type=int, default=-1, help="the descriptor that reports it to the launcher")
    parser.add_argument("--backend", choices=["processes", "containers", "outside"], default="processes")
    parser.add_argument("--engine", default="/var/run/docker.sock")
    parser.add_argument("--owner", default="", help="the owner's name, for display")
    parser.add_argument("--owner-id", default="")
    parser.add_argument("--python", default="", help="this interpreter, as the specs of the nodes name it")
    parser.add_argument("--unit", action="store_true", help="systemd has started it: it does not detach")


def _link_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hostdir", required=True)
    parser.add_argument("--bed", required=True, help="for display in process lists")
    parser.add_argument("--root", action="append", default=[], help="another directory that may be accessed")


def _reverse_link_options(parser: argparse.ArgumentParser) -> None:
    _link_server_options(parser)
    parser.add_argument("--links", type=Path, required=True, help="the certificate, the tokens and the listeners")
    parser.add_argument("--host", required=True, help="the name of this host in the bed")


def _run_keeper(options: argparse.Namespace) -> int:
    """Become the keeper. Without a unit it detaches first: the launcher exits with code 0 once the keeper is detached."""
    from .keeper import keeper
    from .oslayer import forks

    if not options.unit:
        try:
            pid = os.fork()
        except BlockingIOError as error:
            sys.exit(f"no more processes can start ({error.strerror}): see ulimit -u")
        if pid:
            os._exit(0)
        os.setsid()
    os.chdir(options.workdir)
    forks.redirect_output(options.workdir / "keeper" / "keeper.log")
    return keeper.main(
        options.workdir,
        options.bed,
        options.archive,
        _report_to_systemd if options.unit else lambda: _report_ready(options.ready),
        backend=options.backend,
        engine=options.engine,
        owner=options.owner,
        owner_id=options.owner_id,
        python=options.python,
    )


def _run_link_server(options: argparse.Namespace) -> int:
    from .hostlink import link_server

    return link_server.main(options.hostdir, options.root)


def _run_reverse_links(options: argparse.Namespace) -> int:
    from .hostlink import reverse_link

    return reverse_link.main(options.links, options.host, options.hostdir, options.bed, options.root)


def _run_agent(options: argparse.Namespace) -> int:
    from .agent import container_main

    return container_main.main(options.directory)


def _report_ready(fd: int) -> None:
    os.write(fd, b"ready\n")
    os.close(fd)


def _report_to_systemd() -> None:
    """See sd_notify(3). What the keeper starts is not to report anything."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(b"READY=1", address.replace("@", "\0", 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
