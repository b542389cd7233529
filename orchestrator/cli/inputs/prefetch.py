"""Begin to reach the hosts that a command line is about before its verb is even loaded: they take longer than all the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ...model.errors import CcbedError
from .session import Session

#: What asks the hosts of one bed, whatever else is on its line.
VERBS = ("run",)
#: Whoever asks for help needs no host; with an inventory the bed may not be up yet.
_WITHOUT = ("-h", "--help", "-i", "--inventory")


def begin(session: Session, args: Sequence[str]) -> None:
    """``args``: the verb, and what follows it. What is wrong with the line, or with the bed, is told by whoever reads it."""
    own = args[: args.index("--")] if "--" in args else args
    if own[0] not in VERBS or any(arg.partition("=")[0] in _WITHOUT for arg in own):
        return
    from . import beds

    with suppress(CcbedError):
        session.ahead(beds.choose(session, _named(own)))


def _named(args: Sequence[str]) -> str | None:
    """The bed that is named on the line or in the environment."""
    for place, arg in enumerate(args):
        option, given, value = arg.partition("=")
        if option == "--bed":
            return value if given else next(iter(args[place + 1 :]), None)
    return os.environ.get("CCBED_BED") or None
