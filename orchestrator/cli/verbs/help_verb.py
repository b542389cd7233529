"""Explain a term of ccbed, or show the help of a verb."""

from __future__ import annotations

import textwrap

import click

from ...core.spec import written_values
from ...model.errors import UsageError
from ...reports.page import terms
from ..inputs import options

_WIDTH = 100


@options.command()
@click.argument("words", nargs=-1, metavar="[TERM|VERB]")
@options.as_json
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> int:
    """Explain a term of ccbed, such as `reference run`, or show the help of a verb; without one, list the terms."""
    shown = ctx.find_root()
    verbs, known, name = shown.command, terms.names(), " ".join(words).lower()
    verb: click.Command | None = verbs
    for word in words:
        verb = verb.get_command(shown, word) if isinstance(verb, click.Group) else None
        shown = click.Context(verb, parent=shown, info_name=word) if verb else shown
    if as_json:
        ctx.obj.terminal.json({known[name]: terms.terms()[known[name]]} if name in known else dict(terms.terms()))
    elif not words:
        click.echo(textwrap.fill(f"terms: {', '.join(terms.terms())}", _WIDTH))
        click.echo(
            "ccbed help TERM explains one; ccbed help VERB shows the options of a verb; ccbed --help lists the verbs"
        )
    elif verb is not None:
        click.echo(verb.get_help(shown))
    elif name in known:
        click.echo(textwrap.fill(f"{known[name]}: {terms.terms()[known[name]]}", _WIDTH))
    else:
        listed = verbs.list_commands(shown) if isinstance(verbs, click.Group) else []
        raise UsageError(
            f"help: unknown term or verb {name}; {written_values.nearest(name, {*terms.terms(), *listed})}",
            hint="ccbed help",
        )
    return 0
