"""Every command of ccbed that a page prints is one that the command line takes: its verb, its options, the number of its arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from orchestrator import plugins
from orchestrator.cli import main
from tests.arch.test_layout import ROOT, tracked

PAGES = [file for file in tracked() if file.suffix == ".md" and file.name != "CHANGELOG.md"]
#: A line of a block or of a session, or a span, that begins with the command; a span of the bare name is no command.
_COMMAND = re.compile(r"^(?:    |\$ |```\n)(?:\$ )?(?:[A-Z_]+=\S+ )*(ccbed .+)$|`(ccbed [a-z][^`]*)`", re.MULTILINE)
_COMMENT = re.compile(r"\s{2,}#.*| #\s.*|\s\\?[|>;]+\s.*|;\s.*|\s&&\s.*")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block, span in _COMMAND.findall(page.read_text()):
            if not re.search(
                r"\.\.\.|…|\[|VERB|TERM", text := _COMMENT.sub("", " ".join((block or span).split("\\\n")))
            ):
                yield str(page.relative_to(ROOT)), text.rstrip(" \\")


def _of_workloads() -> set[str]:
    workloads = plugins.discover().workloads.values()
    names = {name for workload in workloads for name in workload.module.Params.__dataclass_fields__}
    return {f"--{name.strip('_').replace('_', '-')}" for name in names}


def _resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = main._group()
    context = click.Context(command, info_name="ccbed")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(context, words[0])
        assert child is not None, f"unknown verb {words[0]}"
        context, command, words = click.Context(child, parent=context), child, words[1:]
    return command, words


@pytest.fixture(scope="module")
def params() -> set[str]:
    return _of_workloads()


@pytest.mark.parametrize("page", sorted({page for page, _ in commands()}))
def test_the_command_line_takes_every_command_of_a_page(page: str, params: set[str]) -> None:
    problems = []
    for line in (text for name, text in commands() if name == page):
        try:
            command, words = _resolved(shlex.split(line)[1:])
        except (AssertionError, ValueError) as error:
            problems.append(f"{line}: {error}")
            continue
        own = words[: words.index("--")] if "--" in words else words
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
        known |= params if command.name == "run" or line.startswith(("ccbed run", "ccbed sweep")) else set()
        options = [word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)]
        problems += [f"{line}: unknown option {name}" for name in options if name not in known]
    assert problems == []


def test_pages_print_many_commands() -> None:
    assert len(list(commands())) > 150
