"""The worked examples of CONTRIBUTING.md are extracted, installed as the text says, both ways, and pass their contract suites."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SECTION = re.compile(r"^## ", re.MULTILINE)
_EXAMPLE = re.compile(r"Save as\s+`([\w/]+\.py)`:\n\n```python\n(.*?)```\n", re.DOTALL)
_SUITE = re.compile(r"Its suite: `python -m (pytest [^`]+)`")


@dataclass(frozen=True, kw_only=True)
class Example:
    """The files of one section, path -> text, and the command line of their suite."""

    files: dict[str, str]
    suite: str

    @property
    def kind(self) -> str:
        return next(iter(self.files)).split("/")[1]


def examples() -> dict[str, Example]:
    """Heading -> what stands under it."""
    sections = {}
    for section in _SECTION.split((ROOT / "CONTRIBUTING.md").read_text()):
        files, suite = dict(_EXAMPLE.findall(section)), _SUITE.search(section)
        if files and suite:
            sections[section.partition("\n")[0]] = Example(files=files, suite=suite[1])
    return sections


EXAMPLES = examples()
PLUGINS = {name: example for name, example in EXAMPLES.items() if name != "A provider"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, without what is not tracked."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for name in listed.split("\0"):
        if name.startswith(("orchestrator/", "tests/", "pyproject.toml")) and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def save(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def run(folder: Path, *args: str, **env: str) -> str:
    """The output of a Python program in a checkout, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **env}
    command = [sys.executable, "-m", *args]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return done.stdout


def passes(folder: Path, suite: str, **env: str) -> None:
    """pytest itself fails where the suite has no test of that name."""
    out = run(folder, *shlex.split(suite), "-q", "-p", "no:cacheprovider", **env)
    assert "skipped" not in out.splitlines()[-1]


def test_there_is_an_example_of_each_kind() -> None:
    kinds = {"faults", "algorithms", "checkers", "workloads", "reports"}
    assert {example.kind for example in PLUGINS.values()} == kinds
    assert "A provider" in EXAMPLES


@pytest.mark.parametrize("name", PLUGINS)
def test_installed_in_the_checkout_it_is_listed_and_passes_its_suite(name: str, checkout: Path) -> None:
    example = PLUGINS[name]
    save(checkout, example.files)
    plugin = Path(next(iter(example.files))).stem.replace("_", "-")
    assert plugin in run(checkout, "orchestrator.cli", "list", example.kind)
    passes(checkout, example.suite)


@pytest.mark.parametrize("name", PLUGINS)
def test_installed_as_a_plugin_it_is_listed_and_passes_its_suite(name: str, tmp_path: Path) -> None:
    example = PLUGINS[name]
    save(tmp_path, {path.removeprefix("orchestrator/"): text for path, text in example.files.items()})
    plugin = Path(next(iter(example.files))).stem.replace("_", "-")
    assert plugin in run(ROOT, "orchestrator.cli", "--plugins", str(tmp_path), "list", example.kind)
    passes(ROOT, example.suite, CCBED_PLUGINS=str(tmp_path))


@pytest.mark.e2e
def test_a_provider_that_is_installed_in_the_checkout_passes_its_suite(checkout: Path) -> None:
    save(checkout, EXAMPLES["A provider"].files)
    passes(checkout, EXAMPLES["A provider"].suite)
