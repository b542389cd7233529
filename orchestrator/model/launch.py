"""The request for a run, from the command line, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .bed import BedSpec
from .event import Event
from .frozen import dataclass, field
from .plan import Placement
from .plugin import Catalogue
from .provider import Provider
from .run import Run
from .trial import Trial
from .verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run to start, or to resume.

    ``runs``: the directory of runs; ``state``: the state directory; ``resume``: the directory of an open run, else empty.
    ``run``: the name of the new run; empty: it gets one.
    ``stop``: resume the run only to heal the bed and to stop its gang; the run stays open.
    ``command``: the exact command line; ``reason``: why it was started; ``inputs``: relative path -> the user's files.
    ``trial``, ``command`` and ``inputs`` hold placeholders for secrets; ``secrets``: placeholder -> secret;
    ``secret_names``: environment variables that are secret. ``umask``: of the ranks.
    ``environment``: that of the user, for the ranks of a script on this machine; None: they have that of their nodes.
    ``exports``: variables for all ranks on all nodes. ``placement``: the nodes that the run must not use; a resumed run has its own.

    ``drains``: reads host -> why it is drained, at any time of the run.

    ``twin``: the run is compared with a twin that is run first; ``twin_after``: with one that follows a short run;
    ``budget_s``: with one that ends, together with the run, within so many seconds.

    ``on_begin`` gets the run's directory as soon as it exists; ``on_event`` every event once it is in the journal;
    ``on_cached_twin`` the run of the twin, if it is cached; ``on_note`` a sentence for the user;
    ``on_stage`` what begins after the end of the run, such as writing the report;
    ``on_reference`` the steps of the run, 0 if they are not known, and every event of a reference run.
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
    run: str = ""
    stop: bool = False
    twin: bool = True
    twin_after: bool = False
    budget_s: float | None = None
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_names: tuple[str, ...] = ()
    umask: int = 0o077
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    exports: Mapping[str, str] = field(default_factory=dict, repr=False)
    placement: Placement = field(default_factory=Placement)
    drains: Callable[[], Mapping[str, str]] = dict
    on_begin: Callable[[str], None] = field(default=lambda directory: None, repr=False)
    on_event: Callable[[Event], None] = field(default=lambda event: None, repr=False)
    on_cached_twin: Callable[[str], None] = lambda run: None
    on_note: Callable[[str], None] = lambda text: None
    on_stage: Callable[[str], None] = lambda text: None
    on_reference: Callable[[int, Event], None] = field(default=lambda steps, event: None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. ``code``: the exit code; ``directory``: of the bundle.

    ``changes``: check -> (saved outcome, outcome now) if they differ; ``unsaved``: checks that have a saved verdict but
    cannot be judged now: then the saved verdicts and reports are kept. ``obstacle``: why nothing could be saved.
    ``judged``: the run as it was read for the verdicts, so that nothing is read and computed twice; None: not in memory.
    """

    run: str
    directory: str
    code: int
    verdicts: tuple[Verdict, ...] = ()
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unsaved: tuple[str, ...] = ()
    obstacle: str = ""
    judged: Run | None = field(default=None, repr=False, compare=False)
