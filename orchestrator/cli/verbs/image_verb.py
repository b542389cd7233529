"""Build the image of container nodes, or list the built images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...app.hosts import images
from ...app.hosts.images import BuildRequest, ListRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.group()
def command() -> None:
    """Build the image of container nodes, or list the images that were built here."""


@options.verb(BuildRequest, below=command)
def build(session: Session, request: BuildRequest) -> int:
    """Build the image, unless it is up to date. TORCH_INDEX names pip's index of the CPU build of torch."""
    terminal = session.terminal

    def show(text: str) -> None:
        if not session.is_json:
            (terminal.status if text.startswith("Step ") else terminal.line)(text)

    built = images.build(request, show)
    if session.is_json:
        terminal.json(built)
    elif built.fresh:
        terminal.line(f"{built.name} built: {built.bytes / 1e6:.0f} MB, id {built.id[7:19]}")
    else:
        terminal.line(f"nothing to build: {built.name} is up to date (id {built.id[7:19]})")
    return 0


@options.shows(ListRequest, images.built, below=command, name="list")
def listed(session: Session, built: Sequence[Any]) -> None:
    """List the images on this machine's engine that ccbed built."""
    terminal = session.terminal
    if built:
        rows = [[image.name, image.id[7:19], f"{image.bytes / 1e6:.0f} MB", image.inputs] for image in built]
        terminal.table(["IMAGE", "ID", "SIZE", "INPUTS"], rows)
    else:
        terminal.line("no image was built here; next: ccbed image build")
