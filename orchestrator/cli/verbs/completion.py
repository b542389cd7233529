"""Print the script that completes ccbed in bash, zsh or fish."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from ...model.errors import UsageError
from .. import bash_completion
from ..inputs import options
from ..inputs.session import Session

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
    bash_completion.install()
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
