"""The manual page has every verb and option, as --help shows them, and is installed with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from . import man_page
from .golden import same_as_golden
from .test_settings import every_verb

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "orchestrator/cli/ccbed.1"


def test_the_page_is_that_of_the_texts() -> None:
    same_as_golden("../../orchestrator/cli/ccbed.1", man_page.render())


def test_every_verb_and_option_is_in_the_page() -> None:
    text = PAGE.read_text().replace("\\-", "-")
    for path, command in every_verb():
        section = text.partition(f".SS ccbed {' '.join(path)}\n")[2].partition("\n.SS ")[0]
        names = [param.opts[-1] for param in command.params if isinstance(param, click.Option)]
        assert names and [name for name in names if name not in section] == [], path


def test_the_wheel_installs_it_where_man_looks() -> None:
    shared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "shared-data"
    ]
    assert shared == {"orchestrator/cli/ccbed.1": "share/man/man1/ccbed.1"}


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_it_without_a_complaint() -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", "-Tutf8", str(PAGE)], env={"LC_ALL": "C.UTF-8", "MANWIDTH": "80", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    text = re.sub(r".\x08", "", done.stdout)
    complaints = [line for line in done.stderr.splitlines() if "can't break line" not in line]  # long metavars
    assert complaints == []
    assert "ccbed run" in text and "--fail-node" in text and "EXIT STATUS" in text
