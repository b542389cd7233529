"""The requests of use cases, and the values that they share: which bed, which changes of a trial, which faults.

A request is what a user asks for, by a command line, a program or a file. Its defaults are the only ones: options and signatures
are made from them. It holds plain values, so that it is equal after a journey through JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from ..model import codec
from ..model.frozen import MISSING, dataclass, field, fields
from ..model.trial import RUNGS

T = TypeVar("T")
RUNS = Path("runs")
RUNS_HELP = "The directory of the runs' bundles."
BASELINES = Path("inventories/baselines")
BASELINES_HELP = "The directory of the baselines: a file of floors for each hardware model."
INCLUDE_QUARANTINED = "Give ranks to nodes that nights set aside too (see ccbed set-aside)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The form of a field on a command line. ``flags``: in place of its name; ``completes``: the kind of values that a shell proposes.

    ``optional``: the value of the option without one. ``least``, ``most``: of a number. ``exists``, ``is_folder``, ``is_file``: of a path.
    ``splits``: a variable of the environment has several, as words of a shell.
    """

    help: str = ""
    metavar: str = ""
    flags: tuple[str, ...] = ()
    completes: str = ""
    least: int | None = None
    most: int | None = None
    optional: str = ""
    choices: tuple[str, ...] = ()
    exists: bool = False
    is_folder: bool = False
    is_file: bool = False
    splits: bool = False


def option(default: Any, text: str, **extra: Any) -> Any:
    """A field that is an option of a command line. ``text``: its help; ``extra``: other fields of ``Option``."""
    return field(default=default, metadata={"option": Option(help=text, **extra)})


def argument(default: Any = MISSING, **extra: Any) -> Any:
    """A field that is an argument of a command line, and must be given if it has no default. ``extra``: fields of ``Option``."""
    return field(default=default, metadata={"argument": Option(**extra)})


def named_run(default: Any = MISSING, metavar: str = "") -> Any:
    """The field for a run: its directory, its name or the end of that, or ``latest``."""
    return argument(default, metavar=metavar, completes="runs")


def runs_directory() -> Any:
    """The field for the directory of runs."""
    return option(RUNS, RUNS_HELP, is_folder=True)


def baselines_directory() -> Any:
    """The field for the directory of baselines."""
    return option(BASELINES, BASELINES_HELP, is_folder=True)


def limited_hosts() -> Any:
    """The field for the hosts on which a use case acts; the bed keeps the others."""
    text = "Act only on this host; repeatable, or h1,h2, rack1-*, !h3. The other hosts stay part of the bed."
    return option((), text, metavar="HOST", completes="hosts")


def bed_name() -> Any:
    """The field for the name of a bed that is up."""
    return option(None, "The bed, if several are up.", completes="beds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BedRef:
    """The bed that is meant: the only one that is up, one of several by its name, or that of an inventory, brought up first."""

    bed: str | None = bed_name()
    inventory: Path | None = option(
        None, "Bring this bed up first, if it is not up.", flags=("-i", "--inventory"), completes="inventories"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRef:
    """The trial: a name or file with the arguments of its script, a module, or a trial as a value."""

    name: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    module: str | None = option(
        None, "Run a module instead of a file, as python -m does.", metavar="MODULE", flags=("-m", "--module")
    )
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """Nodes that are killed, and when."""

    fail_node: tuple[str, ...] = option(
        (),
        "Kill this node halfway through the run; in a script, after its second checkpoint. "
        "Repeatable: without --at all are killed at the same time.",
        metavar="N",
        completes="nodes",
    )
    at: tuple[str, ...] = option(
        (),
        "When --fail-node acts: step=20,phase=allreduce, 10s, save, or after-save=2+3. Once for all, or once per --fail-node.",
        metavar="WHEN",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRequest:
    """Changes of the trial's recovery."""

    recovery: str | None = option(
        None,
        "auto, none, an order of spare, restart, replace (start it on another host) and shrink such as spare,replace, "
        "or theirs: the --launcher recovers.",
        metavar="POLICY",
    )
    max_restarts: str | None = option(None, "Maximum number of recoveries.", metavar="N")
    grow_after: str | None = option(
        None,
        "After this time, start again the nodes that a smaller worker group goes on without; they rejoin after the next checkpoint.",
        metavar="TIME",
    )
    replace_wait: str | None = option(
        None, "How long --recovery replace waits until another host has room. [default: not at all]", metavar="TIME"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRequest:
    """Changes of the trial's world."""

    nodes: str | None = option(
        None,
        "Number of nodes. With 2:4 a worker group of 4 that loses a node without a spare goes on with the others, down to 2.",
        metavar="N|MIN:MAX",
        flags=("--nodes", "--nnodes"),
    )
    ranks_per_node: str | None = option(
        None, "Ranks per node.", metavar="N", flags=("--ranks-per-node", "--nproc-per-node")
    )
    backend: str | None = option(None, "auto, gloo or nccl.", metavar="NAME")
    seed: str | None = option(None, "The seed of weights, data order and noise.", metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsRequest:
    """Limits of time."""

    wall: str | None = option(None, "The time limit of the run: 90s, 2h (default 1h).", metavar="TIME")
    budget: str | None = option(
        None,
        "The time for a drill of a script: 90s, 10m. The job is ended on purpose then, unless --stop-at says when; reference runs"
        " follow that fit in, the undisturbed one first, and the verdict names what was left out.",
        metavar="TIME",
    )
    timeout: str | None = option(
        None,
        "A script that completes no step for this long has stalled, even while its ranks work"
        " (default: 30s, or 20 steps, and only while no rank works).",
        metavar="TIME",
    )
    grace: str | None = option(
        None,
        "Send SIGTERM to the ranks of a script that are to end, and SIGKILL after this time (default: SIGKILL at once).",
        metavar="TIME",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRequest:
    """The rung that a training must reach to pass."""

    require: str | None = option(
        None,
        "The rung that a training must reach for exit 0: survived, whole (its state resumed) or exact (bit by bit)."
        " [default: whole; exact of built-in trainings, and with --reference]",
        metavar="RUNG",
        choices=RUNGS,
    )
    accept: str | None = option(
        None,
        "Parts of the state that a training may lose, noted in the verdict: rng, data-position, ema, or none."
        " [default: rng, unless exact is required]",
        metavar="PARTS",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRequest:
    """Variables and data of the ranks' processes, and which of them are secret."""

    secret: tuple[str, ...] = option(
        (), "Redact this environment variable or option of the script. Repeatable.", metavar="NAME"
    )
    env: tuple[str, ...] = option(
        (),
        "Set this variable in every rank, on every host. Repeatable. On this machine ranks of a script have your whole environment.",
        metavar="NAME[=VALUE]",
    )
    cold: bool = option(False, "Start a new Python interpreter for each rank of a script, as torchrun does.")
    data_dir: Path | None = option(None, "The directory of data sets for the ranks.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareRequest:
    """The nodes that may be used, and the probes of spares before."""

    include_quarantined: bool = option(False, INCLUDE_QUARANTINED)
    probe_spares: str | None = option(
        None,
        "Probe the spares first (matrix products, memory, disk) for about TIME (default 30s). A spare that is worse than its"
        " floor or than its peers does not join. Put this option behind TRIAL.",
        metavar="[TIME]",
        optional="30s",
    )
    baselines: Path = baselines_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRequest:
    """The place of bundles, and what is shown and kept of the ranks' output."""

    runs_dir: Path = runs_directory()
    log_dir: Path | None = option(
        None, "Copy the ranks' output to DIRECTORY/RUN/attempt_N/RANK/output.log at the end.", is_folder=True
    )
    tee: str | None = option(None, "Print the output of this rank (default: 0, of a script).", metavar="RANK|all|none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The request of `ccbed run`. ``params``: those of the workload; ``repeat``: so many runs; ``resume``: a directory of such runs."""

    trial: TrialRef
    fault: FaultRequest = FaultRequest()
    recovery: RecoveryRequest = RecoveryRequest()
    world: WorldRequest = WorldRequest()
    limits: LimitsRequest = LimitsRequest()
    ladder: LadderRequest = LadderRequest()
    params: Mapping[str, Any] = field(default_factory=dict)
    repeat: int | None = option(
        None,
        "Run the trial N times; --json prints one document for all runs. An interruption or an error stops it.",
        metavar="N",
        least=1,
    )
    resume: Path | None = option(
        None,
        "Resume the --repeat in DIR that was interrupted; the rest of the line is as before. `ccbed resume DIR` does the same.",
        metavar="DIR",
        exists=True,
        is_folder=True,
    )
    reference: bool | None = option(
        None,
        "Compare with a reference run, the same trial without faults; a script and its reference run then run in copies of its project."
        " Without one, checks that need it are unknown (exit 2) if the trial names them, else not checked."
        " [default: a reference run; for a script with faults that took less than a minute, one that follows the run]",
    )
    process: ProcessRequest = ProcessRequest()
    detach: bool = option(False, "Run in the background, without this terminal; Ctrl-C then has no effect.")
    output: OutputRequest = OutputRequest()
    bed: BedRef = BedRef()
    ephemeral: bool = option(False, "Take the bed of --inventory down at the end, also after a failure or Ctrl-C.")
    spares: SpareRequest = SpareRequest()
    dry_run: bool = option(False, "Print the trial and its plan, and stop.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """The request of `ccbed up`. ``limit``: hosts; empty: all that are not drained."""

    inventory: Path = argument(completes="inventories")
    dry_run: bool = option(False, "Print the plan and stop.")
    prepare: bool | None = option(None, "Prepare all hosts, or none.  [default: the hosts that changed]")
    force: bool = option(False, "Act even while a run is open on the bed; that run ends.")
    limit: tuple[str, ...] = limited_hosts()
    max_unavailable: int | None = option(
        None,
        "Change at most N hosts at a time, and stop at the first that fails.  [default: all at once]",
        metavar="N",
        least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The request of `ccbed plan`, and of `ccbed doctor`. ``limit``: as of ``UpRequest``."""

    inventory: Path = argument(completes="inventories")
    limit: tuple[str, ...] = limited_hosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBedRequest:
    """The request of `ccbed status`, where None is every bed that is up, and of `ccbed heal`, where it is the only one."""

    bed: str | None = argument(None, completes="beds")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownRequest:
    """The request of `ccbed down`. ``bed``: a bed or an inventory; None: the only bed that is up."""

    bed: str | None = argument(None, metavar="[BED|INVENTORY]", completes="beds_and_inventories")
    all: bool = option(False, "End every bed that is up.")
    force: bool = option(
        False, "Act even while a run is open on the bed, whose ccbed is ended, or if another user owns the bed."
    )
    abandon: bool = option(False, "Abandon hosts that cannot be reached: the bed's processes there stay.")
    reset: bool = option(False, "Also remove the bed's directory on the hosts, which preparation made.")
    limit: tuple[str, ...] = limited_hosts()


def is_request(kind: Any) -> bool:
    """Tell whether a type is that of a request, or of a value in one."""
    return hasattr(kind, "__dataclass_fields__")


def build(request: type[T], values: Mapping[str, Any]) -> T:
    """Return the request from a flat mapping: name of a field, also of one in a value of the request -> what it is.

    Other names are left out; fields without a name have their defaults.

    >>> build(DownRequest, {"bed": "lab", "force": True}).force
    True
    """
    kinds = codec.hints(cast(type, request))
    content: dict[str, Any] = {}
    for item in fields(request):  # type: ignore[arg-type]
        if item.name in values and not (is_request(kinds[item.name]) and not is_request(values[item.name])):
            content[item.name] = values[item.name]
        elif is_request(kinds[item.name]):
            content[item.name] = build(kinds[item.name], values)
    return request(**content)


def options_of(request: type) -> tuple[str, ...]:
    """The fields of the request that are options of a command line, those of its values included."""
    kinds = codec.hints(request)
    groups = (
        options_of(kinds[item.name]) if is_request(kinds[item.name]) else (item.name,) * ("option" in item.metadata)
        for item in fields(request)
    )
    return tuple(name for group in groups for name in group)
