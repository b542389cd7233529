"""Build the image of container nodes, and list the images that were built."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...model.frozen import dataclass
from ...model.requirements import TORCH
from ...store import shipped
from ..requests import option
from ..session import Session

if TYPE_CHECKING:
    from ...providers.node_images.image_build import Built


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """The request of `ccbed image build`."""

    kind: Literal["cpu", "cuda"] = option("cpu", "Which Dockerfile.", choices=("cpu", "cuda"))
    base: str | None = option(None, "The image to build on. [default for cpu: python:3.11-slim]")
    tag: str | None = option(None, f"The name of the image. [default: ccbed/<kind>:{TORCH}]")
    wheelhouse: Path | None = option(
        None, "A directory of wheels to install from. [default for cpu: collected by pip]", exists=True, is_folder=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """The request of `ccbed image list`."""


def build(request: BuildRequest, on_progress: Callable[[str], None]) -> Built:
    """Build the image, unless it is up to date. Raises UsageError, InfrastructureError: then the old image stays."""
    import platformdirs

    from ...providers.node_images import image_build

    recipe = image_build.Recipe(
        folder=shipped.folder("images"), cache=platformdirs.user_cache_path("ccbed"), kind=request.kind,
        base=request.base, tag=request.tag, wheels=request.wheelhouse,
    )  # fmt: skip
    return image_build.build(image_build.connect(), recipe, os.environ, on_progress)


def built(_session: Session, _request: ListRequest) -> tuple[Built, ...]:
    """Return the images on this machine's engine that ccbed built. Raises InfrastructureError."""
    from ...providers.node_images import image_build

    return tuple(image_build.listed(image_build.connect()))
