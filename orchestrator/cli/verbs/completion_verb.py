"""Print the script that completes ccbed in bash, zsh or fish."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from ...model.errors import UsageError
from ..inputs import options
from ..inputs.terminal_session import Session

_SHELLS = ("bash", "zsh", "fish")
#: click's variable: a shell sets it when it asks for completions.
_VARIABLE = "_CCBED_COMPLETE"


@options.command()
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
@options.as_json
@click.pass_context
def command(ctx: click.Context, shell: str | None, as_json: bool) -> int:
    """Print the script that completes verbs, options, beds, nodes, runs, trials and faults in SHELL (default: that of $SHELL).

    \b
    bash    eval "$(ccbed completion bash)"     in ~/.bashrc
    zsh     eval "$(ccbed completion zsh)"      in ~/.zshrc, after compinit
    fish    ccbed completion fish > ~/.config/fish/completions/ccbed.fish
    """
    install()
    session = ctx.find_object(Session)
    name = shell or Path(os.environ.get("SHELL", "")).name
    completion = get_completion_class(name)
    if session is None or completion is None or name not in _SHELLS:
        raise UsageError(
            f"no completion for the shell {name or '(SHELL is not set)'}", hint="ccbed completion bash, zsh or fish"
        )
    script = completion(ctx.find_root().command, {}, "ccbed", _VARIABLE).source()
    if as_json:
        session.terminal.json({"shell": name, "script": script})
    else:
        session.terminal.block(f"{script.strip()}\n")
    return 0


# --- bash itself ends a word at each colon, and completes the part behind the last one ---

#: Of click's script -> what takes its place: the line up to the cursor; and names stay where files are offered as well.
_CHANGES = {
    'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD': (
        'COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS"'
    ),
    "COMPREPLY=()": ":",
}


class Bash(BashComplete):
    """click's, with the words as the shell passes them to a program."""

    source_template = functools.reduce(
        lambda text, change: text.replace(*change), _CHANGES.items(), BashComplete.source_template
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        is_begun = len(words) > 1 and not line[-1:].isspace()
        self._incomplete = words[-1] if is_begun else ""
        return words[1 : -1 if is_begun else None], self._incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._known)}"

    @property
    def _known(self) -> str:
        """Return the part of the word that bash does not replace."""
        breaks: Any = os.environ.get("COMP_WORDBREAKS", "")
        head, colon, _ = self._incomplete.rpartition(":")
        return head + colon if ":" in breaks else ""


def install() -> None:
    add_completion_class(Bash)
