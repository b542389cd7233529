"""Run a command on a node, with the node's environment."""

from __future__ import annotations

import errno
import io
import secrets
import shlex
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from ...app import audited, beds
from ...app.places import short_path
from ...core.bed import selection
from ...core.spec import redact
from ...model import event
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.events import CommandFailed, Exec, ExecStop
from ...model.provider import Provider
from ...store import index
from ..inputs import completions, options
from ..inputs.session import Session

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
@click.argument("node", metavar="[BED/]NODE", shell_complete=completions.bed_nodes)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
@options.as_json
@click.pass_obj
def command(session: Session, node: str, argv: tuple[str, ...], as_json: bool) -> int:
    """Run COMMAND on a node, in its directory and with its environment; the exit code is that of the command."""
    from ...providers import bed_commands

    program = argv[1:] if argv[0] == "--" else argv
    if argv[0] != "--" and argv[0].startswith("-"):
        raise UsageError(
            f"{argv[0]} is not a command", hint=f"options come before the node: ccbed exec {argv[0]} {node}"
        )
    if not program:
        raise UsageError("no command to run", hint=f"ccbed exec {node} -- COMMAND")
    handle = index.node(node)
    rest = shlex.join(program).replace("{", "{{").replace("}", "}}")
    bed = beds.choose(session, handle[0] if handle else None, hint=f"ccbed exec {{bed}}/{node} -- {rest}")
    name = beds.node_name(bed, handle[1] if handle else node)
    host = bed.node(name).host
    bed = _part(session, bed, host)
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
    screen = session.terminal
    session.terminal = replace(screen, out=io.StringIO(), err=io.StringIO()) if as_json else screen
    tails = _Tails(session, local)

    def waiting() -> None:
        tails.pump()
        if name not in provider.heartbeats() or provider.heartbeats()[name][0] != status.incarnation:
            raise InfrastructureError(f"node {bed.name}/{name} was lost while the command ran")

    text = f"{name}: {redact.command_line(list(program))}"
    with audited.act(session, bed, provider, "exec", {host: text}) as results:
        try:
            reply = commands.perform([order], while_waiting=waiting)[order.key]
        except KeyboardInterrupt:
            stop = ExecStop(out=str(out))
            key = f"{order.key}/stop"
            commands.perform([event.command(stop, key, node=name, incarnation=status.incarnation, deadline_s=_STOP_S)])
            raise
        problem = bed_commands.problem(reply, order)
        results[host] = _result(reply, problem)
    _fetch_rest(provider, name, out, local)
    tails.pump()
    failed = reply.data if reply is not None and reply.kind is CommandFailed else None
    if failed is not None and failed.errno is not None:
        session.terminal.error([f"{bed.name}/{name}: {problem}"])
        code = 127 if failed.errno == errno.ENOENT else 126  # as in a shell
    elif reply is None or problem:
        raise InfrastructureError(f"{bed.name}/{name}: {problem}")
    else:
        code = _shell_code(1 if reply.data.code is None else reply.data.code)
    if as_json:
        texts = {"stdout": session.terminal.out, "stderr": session.terminal.err}
        document = {name: text.getvalue() for name, text in texts.items() if isinstance(text, io.StringIO)}
        screen.json({"bed": bed.name, "node": name, "exit": code, **document})
    return code


def _part(session: Session, bed: BedSpec, host: str) -> BedSpec:
    """The part of a bed that is contacted: the host of the node, also if it is drained, because the user names it."""
    if drain := beds.drains(bed).get(host):
        session.terminal.warn(f"host {host} {drain.text}")
    return selection.on_hosts(bed, (host,)) if bed.provider == "docker" else bed


def _result(reply: event.Event | None, problem: str) -> str:
    """How the command ended, for the record of acts."""
    if problem:
        return f"failed: {problem}"
    return (
        audited.UNKNOWN if reply is None else f"exit {_shell_code(1 if reply.data.code is None else reply.data.code)}"
    )


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
