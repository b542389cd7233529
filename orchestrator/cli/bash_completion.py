"""Completion in bash of words with a colon: bash itself ends a word at each, and completes the part behind the last one."""

from __future__ import annotations

import functools
import os
from typing import Any

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

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
        """What of the word bash does not replace."""
        breaks: Any = os.environ.get("COMP_WORDBREAKS", "")
        head, colon, _ = self._incomplete.rpartition(":")
        return head + colon if ":" in breaks else ""


def install() -> None:
    add_completion_class(Bash)
