"""Build the image of container nodes, or list the built images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ...model.requirements import TORCH
from ..inputs import options
from ..inputs.session import Session


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Build the image of container nodes, or list the images that were built here."""


@command.command("build")
@click.option("--kind", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Which Dockerfile.")
@click.option("--base", default=None, help="The image to build on. [default for cpu: python:3.11-slim]")
@click.option("--tag", default=None, help=f"The name of the image. [default: ccbed/<kind>:{TORCH}]")
@click.option(
    "--wheelhouse",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="A directory of wheels to install from. [default for cpu: collected by pip]",
)
@options.as_json
@click.pass_obj
def build(
    session: Session, kind: Any, base: str | None, tag: str | None, wheelhouse: Path | None, as_json: bool
) -> int:
    """Build the image, unless it is up to date. TORCH_INDEX names pip's index of the CPU build of torch."""
    from ...providers.node_images import image_build

    recipe = image_build.Recipe(folder=_folder(), cache=_cache(), kind=kind, base=base, tag=tag, wheels=wheelhouse)
    terminal = session.terminal

    def show(text: str) -> None:
        if as_json or text.startswith("Step "):
            terminal.status(text) if not as_json else None
        else:
            terminal.line(text)

    built = image_build.build(image_build.connect(), recipe, os.environ, show)
    if as_json:
        terminal.json(built)
    elif built.fresh:
        terminal.line(f"{built.name} built: {built.bytes / 1e6:.0f} MB, id {built.id[7:19]}")
    else:
        terminal.line(f"nothing to build: {built.name} is up to date (id {built.id[7:19]})")
    return 0


@command.command("list")
@options.as_json
@click.pass_obj
def listed(session: Session, as_json: bool) -> int:
    """List the images on this machine's engine that ccbed built."""
    from ...providers.node_images import image_build

    images = list(image_build.listed(image_build.connect()))
    if as_json:
        session.terminal.json(images)
    elif images:
        rows = [[image.name, image.id[7:19], f"{image.bytes / 1e6:.0f} MB", image.inputs] for image in images]
        session.terminal.table(["IMAGE", "ID", "SIZE", "INPUTS"], rows)
    else:
        session.terminal.line("no image was built here; next: ccbed image build")
    return 0


def _folder() -> Path:
    from ...store import shipped

    return shipped.folder("images")


def _cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("ccbed")
