"""What the command line hands to the life of a run, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .bed import BedSpec
from .event import Event
from .plugin import Catalogue
from .provider import Provider
from .trial import Trial
from .verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run that is to be begun, or (``resume``) gone on with.

    ``runs``: the directory of runs; ``state``: the state directory; ``resume``: the directory of an open run, else empty.
    ``stop``: it is gone on with only to heal the bed and to stop its gang; it stays open.
    ``command``: the exact command line; ``reason``: why it was started; ``inputs``: relative path -> the user's files.
    ``trial``, ``command`` and ``inputs`` hold placeholders in the places of secrets; ``secrets``: placeholder -> secret;
    ``secret_names``: environment variables that the user calls secret. ``umask``: that of the ranks.
    ``known`` is told the run that is the twin, where one was made before.
    ``note`` is told, in a sentence, what a user should know before the run begins.
    ``began`` is told the run's directory as soon as it is there, ``told`` every event once it is in the journal.
    """

    trial: Trial
    bed: BedSpec
    provider: Provider
    catalogue: Catalogue
    runs: str
    state: str
    command: str
    reason: str = "by hand"
    data_dir: str | None = None
    resume: str = ""
    stop: bool = False
    twin: bool = True
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_names: tuple[str, ...] = ()
    umask: int = 0o077
    began: Callable[[str], None] = lambda directory: None
    told: Callable[[Event], None] = lambda event: None
    known: Callable[[str], None] = lambda run: None
    note: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How it ended. ``code``: the exit code by the design's precedence; ``directory``: the bundle's.

    ``changes``: check -> (outcome that was saved before, outcome now), where they differ; ``unsaved``: the checks that could
    not be judged now but were before: then the saved verdicts and reports are left as they are.
    ``obstacle``: why verdicts and reports could not be saved.
    """

    run: str
    directory: str
    code: int
    verdicts: tuple[Verdict, ...] = ()
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unsaved: tuple[str, ...] = ()
    obstacle: str = ""
