"""Pytest plugin: ``engine``, ``image`` and ``lab`` for every test that needs a real one. What is missing is said; with
CCBED_TESTS_REQUIRE=all that is a failure."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .. import undo
from . import abandoned, images, layout, own_engine, processes, rising

LAB_ROOT = Path(os.environ.get("CCBED_LAB_ROOT", str(layout.DEFAULT_ROOT)))
_ROOT, _TOOL = Path(__file__).parents[2], Path(__file__).with_name("lab.py")


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """A docker SDK client of this machine's engine; started for the session where none answers, and stopped by its pid."""
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(own_engine.running())
        except own_engine.LackingError as error:
            pytest.skip(str(error))
        abandoned.remove(client)
        yield client


@pytest.fixture(scope="session")
def image(engine: Any) -> str:
    """The name of the CPU image, built once on this machine."""
    import platformdirs

    from orchestrator.model.errors import CcbedError
    from orchestrator.providers.node_images import image_build

    recipe = image_build.Recipe(folder=_ROOT / "images", cache=platformdirs.user_cache_path("ccbed"))
    try:
        return image_build.build(engine, recipe, os.environ, print).name
    except CcbedError as error:
        pytest.skip(f"{error}; {error.hint}")


@pytest.fixture(scope="session")
def lab(image: str) -> Iterator[layout.Lab]:
    """Three hosts with the image on them. One that is up already is used as it is, and left up."""
    lacking = rising.lack()
    if lacking:
        pytest.skip(f"no lab on this machine: {'; '.join(lacking)}")
    lab = rising.known(LAB_ROOT)
    was_up = lab is not None and bool(processes.first(lab))
    wanted = lab if lab and was_up else layout.Lab(root=LAB_ROOT)
    with contextlib.ExitStack() as stack:
        if not was_up:
            stack.enter_context(undo.by_command(sys.executable, _TOOL, "--root", LAB_ROOT, "down"))
        with rising.locked(LAB_ROOT):
            pids = rising.up(wanted)
            images.load(wanted, image, pids)
        yield wanted
        if not was_up:
            with rising.locked(LAB_ROOT):
                rising.down(wanted)
