"""The manual page ccbed(1), from the texts of ``--help``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from orchestrator.cli import main
from orchestrator.model import errors

_EXITS = (
    (errors.EXIT_PASS, "Every verdict passes."),
    (errors.EXIT_FINDING, "A verdict fails: a finding about what was tested."),
    (errors.EXIT_UNKNOWN, "Unknown: a fault that was not verified, data that was lost, every check skipped."),
    (errors.EXIT_USAGE, "Usage, inventory or trial is wrong, or no bed is up: nothing was started."),
    (
        errors.EXIT_INFRASTRUCTURE,
        "Infrastructure: nodes that are not ready or were lost unplanned, a journal that cannot be written.",
    ),
    (errors.EXIT_INTERRUPTED, "Interrupted; the command that resumes is printed."),
)
_FILES = (
    (
        "~/.config/ccbed/config.toml, ccbed.toml",
        "Defaults of options, of the user and of a project: ccbed config show.",
    ),
    ("~/.local/state/ccbed", "Beds, cached reference runs, crash reports."),
    ("runs/", "A bundle for each run."),
)


def render() -> str:
    """The page in roff, with one section for all verbs."""
    root = main._group()
    context = click.Context(root, info_name="ccbed")
    return "\n".join([*_head(root), ".SH VERBS", *_verbs(root, context, "ccbed"), *_tail(root, context), ""])


def _head(root: click.Group) -> Iterator[str]:
    yield from (
        '.TH CCBED 1 "" "ccbed" "User Commands"',
        ".ad l",
        ".nh",
        ".SH NAME",
        "ccbed \\- inject faults into a training cluster and verify that training recovers",
    )
    yield from (
        ".SH SYNOPSIS",
        ".B ccbed",
        "[\\fIOPTIONS\\fR] \\fIVERB\\fR [\\fIARGS\\fR]...",
        ".SH DESCRIPTION",
        _text(root.help or ""),
    )


def _tail(root: click.Group, context: click.Context) -> Iterator[str]:
    yield ".SH OPTIONS"
    yield from _options(root, context)
    yield from (".SH ENVIRONMENT", "Every option of a verb can be set as CCBED_\\fIOPTION\\fR.")
    yield "NO_COLOR switches colours off, FORCE_COLOR on; COLUMNS sets the width."
    yield ".SH EXIT STATUS"
    for code, text in _EXITS:
        yield from (".TP", f".B {code}", text)
    yield ".SH FILES"
    for name, text in _FILES:
        yield from (".TP", f".I {_text(name)}", _text(text))


def _verbs(group: click.Group, context: click.Context, path: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        nested = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(nested))
        yield from (f".SS {path} {name}", f".B {path} {name}", _text(usage), ".PP", *_paragraphs(command.help or ""))
        yield from _options(command, nested)
        if isinstance(command, click.Group):
            yield from _verbs(command, nested, f"{path} {name}")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option) and "--help" not in param.opts:
            yield from (".TP", f".B {_text(record[0])}", _text(record[1]) or "\\&")


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; one that begins with ``\\b`` keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("\b"):
            lines = [_text(line) for line in paragraph.splitlines()[1:]]
            yield from (".PP", ".nf", *lines, ".fi")
        else:
            yield from (".PP", _text(" ".join(paragraph.split())))


def _text(text: str) -> str:
    """A text without requests and escapes of roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
