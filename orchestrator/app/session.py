"""The session of one invocation, which every use case gets: directories, providers, and who follows it."""

from __future__ import annotations

import functools
import os
import pwd
import shlex
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..model.frozen import dataclass, field
from ..prepare.vault import Vault

if TYPE_CHECKING:
    from ..model.bed import BedSpec
    from ..model.event import History
    from ..model.launch import Request, Result
    from ..model.plugin import Catalogue
    from ..model.provider import Provider
    from ..model.trial import Trial
    from .announcement import Announcer
    from .observers import BedObserver, RunObserver, Screen
    from .requests import OutputRequest


#: Verb -> former name of an option -> its name; the former one works for one release.
FORMER = {
    "run": {"twin": "reference", "no-twin": "no-reference"}, "logs": {"epoch": "start"}, "quarantine": {"release": "end"},
}  # fmt: skip
#: Former name of a verb -> the words that stand for it; it works for one release.
FORMER_VERBS = {"drain": ("set-aside",), "undrain": ("set-aside", "--end"), "quarantine": ("set-aside",)}


def complete_environment() -> None:
    """Give a user without an entry in the list of users, as in a container, a name, and a home that cannot exist."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", os.devnull)
        if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
            os.environ["LOGNAME"] = str(os.getuid())


def state_dir() -> Path:
    """Return the directory of ccbed's state; ``XDG_STATE_HOME`` sets its parent."""
    return user_directory("XDG_STATE_HOME", "~/.local/state")


def user_directory(variable: str, usual: str) -> Path:
    """Return the user's directory for ccbed in that of an XDG variable, or in the usual one. ``platformdirs`` is 7 modules of a start."""
    named = os.environ.get(variable, "")
    return Path(named if os.path.isabs(named) else os.path.expanduser(usual), "ccbed")  # noqa: PTH111, PTH117 a home may be missing


def process_provider(state: Path) -> Provider:
    from ..providers.process import process_provider as process

    return process.ProcessProvider(state)


def docker_provider(state: Path) -> Provider:
    """Return the provider of container nodes, on this machine or on hosts."""
    from ..providers.docker import docker_provider as docker

    return docker.DockerProvider(state)


def slurm_provider(state: Path) -> Provider:
    from .. import products

    provider: Provider = products.part("slurm", "slurm_provider").SlurmProvider(state)
    return provider


def agent_hash() -> str:
    """Return the hash of this version's agent archive."""
    from ..providers import archive

    return archive.agent_hash()


def owner_id(state: Path) -> str:
    from ..providers import owners

    return owners.identity(state)


def launch(request: Request) -> Result:
    from ..run import lifecycle

    return lifecycle.launch(request)


def drain_texts(bed: BedSpec) -> dict[str, str]:
    """Drained host -> since when, by whom and why. Raises InfrastructureError where they are not known."""
    from .hosts import quarantine

    return {host: drain.text for host, drain in quarantine.read(Path(bed.workdir)).drained.items()}


class Observers(Protocol):
    """Opens what follows one run, or a change of a bed."""

    def run(self, session: Session, output: OutputRequest, *, is_script: bool) -> RunObserver: ...
    def resumed(self, session: Session, trial: Trial, slots: tuple[str, ...], history: History) -> RunObserver:
        """``history``: of the run so far, which another process has followed."""

    def bed(self, session: Session) -> BedObserver: ...
    def night(self, session: Session) -> Any:
        """Return what follows a night, of which the test-bed knows nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a bed's Slurm job. ``wait_s``: how long it may wait in the queue; None: without limit. ``job_id``: an existing job
    to use instead. ``is_ephemeral``: the job ends with this command. ``is_resumed``: so does that of the run it resumes."""

    wait_s: float | None = None
    job_id: int | None = None
    is_ephemeral: bool = False
    is_resumed: bool = False


@dataclass(kw_only=True)
class Session:
    """One invocation. ``providers``: kind of provider -> function of the state directory that opens it.

    ``terminal``: takes lines; ``follow``: opens what follows runs and beds.
    ``settings``: the files that were read; ``set_in``: option -> its place in them.
    ``umask``: that of the user, for the files of the user's programs.
    ``announcer``: tells a later `resume` of the same shell about the run of this `run`.
    ``is_json``: the output is a document. ``obtained``: beds whose Slurm job this invocation submitted, adopted or took over.
    """

    state: Path
    terminal: Screen
    follow: Observers
    argv: tuple[str, ...] = field(default=(), repr=False)
    umask: int = 0o077
    is_json: bool = False
    announcer: Announcer | None = None
    plugins: tuple[Path, ...] = ()
    settings: tuple[Path, ...] = ()
    set_in: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, Callable[[Path], Provider]] = field(
        default_factory=lambda: {"process": process_provider, "docker": docker_provider, "slurm": slurm_provider}
    )
    agent: Callable[[], str] = agent_hash
    launch: Callable[[Request], Result] = launch
    began: float = field(default_factory=time.monotonic)
    _opened: list[Provider] = field(default_factory=list)
    _warmed_up: list[tuple[BedSpec, Provider]] = field(default_factory=list)
    vault: Vault = field(default_factory=Vault)
    job: JobOptions = field(default_factory=JobOptions)
    obtained: list[str] = field(default_factory=list)

    def warm_up(self, bed: BedSpec) -> None:
        """Start to connect the bed's hosts in the background. The next call of ``provider`` returns that provider."""
        provider = self.provider(bed)
        provider.warm_up(bed)
        self._warmed_up.append((bed, provider))

    def provider(self, bed: BedSpec) -> Provider:
        """Return a provider of the bed's kind; ``close`` closes it."""
        for known_bed, provider in self._warmed_up:
            if known_bed == bed:
                self._warmed_up.remove((known_bed, provider))
                return provider
        self._opened.append(self.providers[bed.provider](self.state))
        return self._opened[-1]

    def request(self, trial: Trial, bed: BedSpec, runs: Path, **values: Any) -> Request:
        """Return the request of this invocation to run ``trial`` on ``bed``, with its bundle in ``runs``. ``values``: other fields."""
        from ..model.launch import Request

        values.setdefault("command", shlex.join(["ccbed", *self.argv]))
        values.setdefault("umask", self.umask)
        values.setdefault("drains", functools.partial(drain_texts, bed))
        if "provider" not in values:
            values["provider"] = self.provider(bed)
        return Request(trial=trial, bed=bed, catalogue=self.catalogue, runs=str(runs), state=str(self.state), **values)

    @property
    def bed_observer(self) -> BedObserver:
        return self.follow.bed(self)

    def run_observer(self, output: OutputRequest, *, is_script: bool) -> RunObserver:
        """Return what follows a run."""
        return self.follow.run(self, output, is_script=is_script)

    def announce(self, directory: Path) -> None:
        """Tell a later `resume` of this shell the directory of the run."""
        if self.announcer:
            self.announcer.run(directory)

    def releases(self, bed: str) -> bool:
        """Tell whether the bed goes down when this command ends: its Slurm job was obtained for the command alone."""
        return self.job.is_ephemeral and bed in self.obtained

    def close(self) -> None:
        for provider in self._opened:
            provider.close()

    def took(self) -> str:
        """Return how long this invocation has taken."""
        seconds = time.monotonic() - self.began
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"

    @cached_property
    def catalogue(self) -> Catalogue:
        """All plugins. Raises UsageError for a plugin folder that does not exist."""
        from .. import plugins

        return plugins.discover(self.plugins)
