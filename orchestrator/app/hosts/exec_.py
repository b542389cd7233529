"""Run a command on a node, in its directory and with its environment, and pass on what it prints."""

from __future__ import annotations

import errno
import secrets
import shlex
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from ...core.bed import selection
from ...core.spec import redact
from ...model import event
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.events import CommandFailed, Exec, ExecStop
from ...model.frozen import dataclass, field
from ...model.provider import Provider
from ...store import index
from .. import audited, beds
from ..places import short_path
from ..requests import argument
from ..session import Session

_STOP_S = 5.0
_FOREVER_S = 86_400.0
_OUTPUT = 1 << 30
#: Gets the name of a stream, ``stdout`` or ``stderr``, and what the command wrote there.
Output = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """The request of `ccbed exec`."""

    node: str = argument(metavar="[BED/]NODE", completes="bed_nodes")
    argv: tuple[str, ...] = argument(metavar="-- COMMAND …")


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The end of a command. ``code``: its exit code as in a shell; ``problem``: why it did not start."""

    bed: str
    node: str
    code: int
    problem: str = ""


def run(session: Session, request: ExecRequest, on_output: Output) -> Executed:
    """Run the command until it ends; an interrupt stops it. Raises UsageError, InfrastructureError."""
    from ...providers import bed_commands

    program = _program(request)
    bed, name = _node(session, request.node, program)
    host = bed.node(name).host
    bed = _part(session, bed, host)
    provider = session.provider(bed)
    status = provider.observe(bed).node(name)
    if status.state not in ("warm", "busy"):
        raise InfrastructureError(
            f"node {bed.name}/{name} is {status.state}", hint=f"ccbed up {short_path(bed.inventory)}"
        )
    directory = Path(bed.directory_on(host)) / "nodes" / name
    out = directory / "exec" / secrets.token_hex(4)
    local = Path(bed.workdir) / "nodes" / name / "exec" / out.name
    content = Exec(argv=program, env=bed.node(name).env, out=str(out), cwd=str(directory), umask=session.umask)
    order = event.command(content, f"exec/{out.name}", node=name, incarnation=status.incarnation, deadline_s=_FOREVER_S)
    commands, tails = bed_commands.bind(provider, bed), _Tails(directory=local, on_output=on_output)

    def waiting() -> None:
        tails.pump()
        if name not in provider.heartbeats() or provider.heartbeats()[name][0] != status.incarnation:
            raise InfrastructureError(f"node {bed.name}/{name} was lost while the command ran")

    with audited.act(
        session, bed, provider, "exec", {host: f"{name}: {redact.command_line(list(program))}"}
    ) as results:
        try:
            reply = commands.perform([order], while_waiting=waiting)[order.key]
        except KeyboardInterrupt:
            stop, key = ExecStop(out=str(out)), f"{order.key}/stop"
            commands.perform([event.command(stop, key, node=name, incarnation=status.incarnation, deadline_s=_STOP_S)])
            raise
        problem = bed_commands.problem(reply, order)
        code = None if reply is None or problem else _shell_code(reply.data.code)
        results[host] = f"failed: {problem}" if problem else audited.UNKNOWN if code is None else f"exit {code}"
    _fetch_rest(provider, name, out, local)
    tails.pump()
    if code is not None:
        return Executed(bed=bed.name, node=name, code=code)
    if reply is not None and reply.kind is CommandFailed and reply.data.errno is not None:
        failed = 127 if reply.data.errno == errno.ENOENT else 126  # as in a shell
        return Executed(bed=bed.name, node=name, code=failed, problem=f"{bed.name}/{name}: {problem}")
    raise InfrastructureError(f"{bed.name}/{name}: {problem}")


def _program(request: ExecRequest) -> tuple[str, ...]:
    first, node = request.argv[0], request.node
    program = request.argv[1:] if first == "--" else request.argv
    if first != "--" and first.startswith("-"):
        raise UsageError(f"{first} is not a command", hint=f"options come before the node: ccbed exec {first} {node}")
    if not program:
        raise UsageError("no command to run", hint=f"ccbed exec {node} -- COMMAND")
    return program


def _node(session: Session, node: str, program: tuple[str, ...]) -> tuple[BedSpec, str]:
    """Return the bed of ``[BED/]NODE``, and the name of the node."""
    handle = index.node(node)
    rest = shlex.join(program).replace("{", "{{").replace("}", "}}")
    bed = beds.choose(session, handle[0] if handle else None, hint=f"ccbed exec {{bed}}/{node} -- {rest}")
    return bed, beds.node_name(bed, handle[1] if handle else node)


def _part(session: Session, bed: BedSpec, host: str) -> BedSpec:
    """The part of a bed that is contacted: the host of the node, also if it is drained, because the user names it."""
    if drain := beds.drains(bed).get(host):
        session.terminal.warn(f"host {host} {drain.text}")
    return selection.on_hosts(bed, (host,)) if bed.provider == "docker" else bed


def _fetch_rest(provider: Provider, node: str, out: Path, local: Path) -> None:
    """Fetch the whole output of a remote host into the directory that mirrors it."""
    if out != local:
        with tempfile.TemporaryDirectory() as unused:
            provider.fetch(node, f"exec/{out.name}", Path(unused), _OUTPUT)


def _shell_code(code: int | None) -> int:
    """Return the exit code as a shell does: 128 + the signal."""
    return 1 if code is None else 128 + signal.Signals(-code) if code < 0 else code


@dataclass(kw_only=True)
class _Tails:
    """Passes on the output of the command as it grows."""

    directory: Path
    on_output: Output
    offsets: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})

    def pump(self) -> None:
        for name, offset in self.offsets.items():
            file = self.directory / name
            if file.exists():
                with file.open("rb") as source:
                    source.seek(offset)
                    text = source.read()
                self.offsets[name] += len(text)
                self.on_output(name, text.decode(errors="replace"))
