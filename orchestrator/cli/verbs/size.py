"""Estimate a training: bytes of collectives, steps, memory, time."""

from __future__ import annotations

from typing import Any

import click

from ...app import requests
from ...app.collectives import size
from ...app.collectives.request import SizeRequest
from ..inputs import options
from ..inputs.session import Session
from ..render import size_view


@options.command()
@options.of_request(SizeRequest)
@options.as_json
@click.pass_obj
def command(session: Session, /, as_json: bool, **values: Any) -> int:
    """Estimate a training: bytes of every collective, steps, memory, time on a link. Nothing is started."""
    sized = size.run(session, requests.build(SizeRequest, values))
    size_view.show_sized(session.terminal, sized, values["trace"], as_json=as_json)
    return 0
