"""Run a command on a node, with the node's environment."""

from __future__ import annotations

import errno
import secrets
import signal
import tempfile
from pathlib import Path

import click

from ...model import event
from ...model.errors import InfrastructureError, UsageError
from ...model.events import CommandFailed, Exec, ExecStop
from ...model.provider import Provider
from ...store import index
from ..inputs import beds
from ..inputs.session import Session
from ..render.terminal import short_path

_STOP_S = 5.0
_FOREVER_S = 86_400.0
_OUTPUT = 1 << 30


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "CCBED",
        "allow_interspersed_args": False,
    }
)
@click.argument("node", metavar="[BED/]NODE")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
@click.pass_obj
def command(session: Session, node: str, argv: tuple[str, ...]) -> int:
    """Run COMMAND on a node, in its directory and with its environment; the exit code is that of the command."""
    from ...providers import bed_commands

    program = argv[1:] if argv[0] == "--" else argv
    if not program:
        raise UsageError("no command to run", hint=f"ccbed exec {node} -- COMMAND")
    handle = index.node(node)
    bed = beds.choose(session, handle[0] if handle else None)
    name = handle[1] if handle else node
    if all(known.name != name for known in bed.nodes):
        raise UsageError(f"bed {bed.name} has no node {name}; it has {', '.join(known.name for known in bed.nodes)}")
    provider = session.provider(bed)
    status = provider.observe(bed).node(name)
    if status.state not in ("warm", "busy"):
        raise InfrastructureError(
            f"node {bed.name}/{name} is {status.state}", hint=f"ccbed up {short_path(bed.inventory)}"
        )
    directory = Path(bed.directory_on(bed.node(name).host)) / "nodes" / name
    out = directory / "exec" / secrets.token_hex(4)
    local = Path(bed.workdir) / "nodes" / name / "exec" / out.name
    program_run = Exec(
        argv=tuple(program), env=bed.node(name).env, out=str(out), cwd=str(directory), umask=session.umask
    )
    key = f"exec/{out.name}"
    order = event.command(program_run, key, node=name, incarnation=status.incarnation, deadline_s=_FOREVER_S)
    commands = bed_commands.bind(provider, bed)
    tails = _Tails(session, local)

    def waiting() -> None:
        tails.pump()
        if name not in provider.heartbeats() or provider.heartbeats()[name][0] != status.incarnation:
            raise InfrastructureError(f"node {bed.name}/{name} was lost while the command ran")

    try:
        reply = commands.perform([order], while_waiting=waiting)[order.key]
    except KeyboardInterrupt:
        commands.perform(
            [
                event.command(
                    ExecStop(out=str(out)),
                    f"{order.key}/stop",
                    node=name,
                    incarnation=status.incarnation,
                    deadline_s=_STOP_S,
                )
            ]
        )
        raise
    _fetch_rest(provider, name, out, local)
    tails.pump()
    problem = bed_commands.problem(reply, order)
    failed = reply.data if reply is not None and reply.kind is CommandFailed else None
    if failed is not None and failed.errno is not None:
        session.terminal.error([f"{bed.name}/{name}: {problem}"])
        return 127 if failed.errno == errno.ENOENT else 126  # as in a shell
    if reply is None or problem:
        raise InfrastructureError(f"{bed.name}/{name}: {problem}")
    return _shell_code(1 if reply.data.code is None else reply.data.code)


def _fetch_rest(provider: Provider, node: str, out: Path, local: Path) -> None:
    """Fetch the whole output of a remote host into the directory that mirrors it."""
    if out != local:
        with tempfile.TemporaryDirectory() as unused:
            provider.fetch(node, f"exec/{out.name}", Path(unused), _OUTPUT)


def _shell_code(code: int) -> int:
    """Return the exit code as a shell does: 128 + the signal."""
    return 128 + signal.Signals(-code) if code < 0 else code


class _Tails:
    """Print the output of the command as it grows."""

    def __init__(self, session: Session, out: Path) -> None:
        terminal = session.terminal
        self._files = [(out / "stdout", terminal.out), (out / "stderr", terminal.err)]
        self._offsets = [0, 0]

    def pump(self) -> None:
        for index_, (file, target) in enumerate(self._files):
            if not file.exists():
                continue
            with file.open("rb") as source:
                source.seek(self._offsets[index_])
                text = source.read()
            self._offsets[index_] += len(text)
            target.write(text.decode(errors="replace"))
            target.flush()
