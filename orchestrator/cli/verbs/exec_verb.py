"""Run a command on a node, with the node's environment."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO

from ...app.hosts import exec_
from ...app.hosts.exec_ import ExecRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.verb(ExecRequest, interspersed=False)
def command(session: Session, request: ExecRequest) -> int:
    """Run COMMAND on a node, in its directory and with its environment; the exit code is that of the command."""
    screen, kept = session.terminal, {"stdout": io.StringIO(), "stderr": io.StringIO()}
    if session.is_json:
        session.terminal = replace(screen, out=kept["stdout"], err=kept["stderr"])
    streams: Mapping[str, TextIO] = {"stdout": session.terminal.out, "stderr": session.terminal.err}

    def show(name: str, text: str) -> None:
        streams[name].write(text)
        streams[name].flush()

    executed = exec_.run(session, request, show)
    if executed.problem:
        session.terminal.error([executed.problem])
    if session.is_json:
        texts = {name: stream.getvalue() for name, stream in kept.items()}
        screen.json({"bed": executed.bed, "node": executed.node, "exit": executed.code, **texts})
    return executed.code
