"""Run a command on a node, with the node's environment."""

from __future__ import annotations

import errno
import secrets
import signal
import tempfile
from pathlib import Path

import click

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
    """Run COMMAND on a node, with its environment and in its directory; the exit code is the command's own."""
    from ...providers import bed_commands

    program = argv[1:] if argv[0] == "--" else argv
    if not program:
        raise UsageError("no command to run", hint=f"ccbed exec {node} -- COMMAND")
    handle = index.node(node)
    bed = beds.choose(session, handle[0] if handle else None)
    name = handle[1] if handle else node
    if all(one.name != name for one in bed.nodes):
        raise UsageError(f"bed {bed.name} has no node {name}; it has {', '.join(one.name for one in bed.nodes)}")
    provider = session.provider(bed)
    found = provider.observe(bed).node(name)
    if found.state not in ("warm", "busy"):
        raise InfrastructureError(
            f"node {bed.name}/{name} is {found.state}", hint=f"ccbed up {short_path(bed.inventory)}"
        )
    directory = Path(bed.hostdir or bed.workdir) / "nodes" / name
    out = directory / "exec" / secrets.token_hex(4)
    here = Path(bed.workdir) / "nodes" / name / "exec" / out.name
    program_run = Exec(
        argv=tuple(program), env=bed.node(name).env, out=str(out), cwd=str(directory), umask=session.umask
    )
    key = f"exec/{out.name}"
    order = command(program_run, key, node=name, incarnation=found.incarnation, deadline_s=_FOREVER_S)
    ask = bed_commands.bound(provider, bed)
    tails = _Tails(session, here)

    def waiting() -> None:
        tails.pump()
        if name not in provider.heartbeats() or provider.heartbeats()[name][0] != found.incarnation:
            raise InfrastructureError(f"node {bed.name}/{name} was lost while the command ran")

    try:
        answer = ask.all([order], waiting=waiting)[order.key]
    except KeyboardInterrupt:
        ask.all(
            [
                command(
                    ExecStop(out=str(out)),
                    f"{order.key}/stop",
                    node=name,
                    incarnation=found.incarnation,
                    deadline_s=_STOP_S,
                )
            ]
        )
        raise
    _bring(provider, name, out, here)
    tails.pump()
    problem = bed_commands.problem(answer, order)
    failed = answer.data if answer is not None and answer.kind is CommandFailed else None
    if failed is not None and failed.errno is not None:
        session.terminal.error([f"{bed.name}/{name}: {problem}"])
        return 127 if failed.errno == errno.ENOENT else 126  # as a shell tells it
    if answer is None or problem:
        raise InfrastructureError(f"{bed.name}/{name}: {problem}")
    return _shell_code(1 if answer.data.code is None else answer.data.code)


def _bring(provider: Provider, node: str, out: Path, here: Path) -> None:
    """All that a host elsewhere has of the output: what is fetched lies here, where it was followed, from then on."""
    if out != here:
        with tempfile.TemporaryDirectory() as unused:
            provider.fetch(node, f"exec/{out.name}", Path(unused), _OUTPUT)


def _shell_code(code: int) -> int:
    """A signal's death as a shell tells it."""
    return 128 + signal.Signals(-code) if code < 0 else code


class _Tails:
    """What the command has written and was not shown yet."""

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
