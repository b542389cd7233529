"""End a bed: all its processes and directories; verified."""

from __future__ import annotations

from typing import Any

import click

from ...app import down, requests
from ...app.requests import DownRequest
from ...model import codec
from ..inputs import completions, options
from ..inputs.session import Session


@options.command()
@options.of_bed(metavar="[BED|INVENTORY]", shell_complete=completions.beds_and_inventories)
@options.of_request(DownRequest)
@options.vault
@options.as_json
@click.pass_obj
def command(session: Session, /, as_json: bool, **values: Any) -> int:
    """End a bed: all its processes and directories, and verify that none is left. Runs keep their bundles."""
    screen = session.terminal
    session.terminal = screen.silent() if as_json else screen
    ended = down.run(session, requests.build(DownRequest, values))
    if as_json:
        screen.json(codec.plain(ended))
    return 0
