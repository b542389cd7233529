"""Gang specification: the ranks that an agent starts on its node in an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bed import LinkSpec
from .frozen import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A point at which a rank stops until it is released or ``limit_s`` has passed. Other ranks report ``rank.inside``.

    ``step`` 0: phases outside steps (rendezvous, init, restore, shutdown, saves and loads). ``nth``: how often the rank
    passes the point until it is held there; None: the first time.
    """

    id: str
    rank: int
    step: int
    phase: str
    limit_s: float = 10.0
    nth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The checkpoint that every rank loads. ``path`` is absolute on the node: a file, or the directory of all ranks' files.

    ``sha256``: of the file, or the joint hash of all files (see ``model/manifest.py``).
    """

    name: str
    path: str
    step: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDir:
    """The directory that holds the user's project: ``root`` on the controller, ``path`` on the node.

    ``source``: the directory that is copied to ``path`` before the first rank starts; empty: ``path`` exists.
    """

    root: str
    path: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A mount namespace in which writes change nothing of the user. ``pid``: the process that holds it; ``marker``: a file in it."""

    pid: int
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The limits that keep a script's reference run off the user's files: ``view``, or its ranks may write below ``writable`` only.

    Then they may also write into the files of their own gang and into a temporary directory of their own. ``env``: variables
    that keep them off the services that the job reports to, unless the user sets them with ``--env``.
    """

    writable: tuple[str, ...] = ()
    view: View | None = None
    env: Mapping[str, str] = field(default_factory=dict)


#: What a Slurm job step says of its GPUs.
STEP_GPUS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS")


def within_step(env: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """The variables of a node whose environment is ``current``: in a Slurm job, numbers of GPUs count within those that Slurm gave."""
    given = {name: current[name].split(",") for name in STEP_GPUS if current.get(name) and "SLURM_JOB_ID" in current}
    wanted = env.get(STEP_GPUS[0], "all")
    if not given or not wanted:
        return dict(env)
    numbers = [int(item) for item in wanted.split(",") if item.isdigit()]
    if not numbers:  # GPUs by name: Slurm has chosen
        numbers = list(range(max(map(len, given.values()))))
    chosen = {name: [gpus[number] for number in numbers if number < len(gpus)] for name, gpus in given.items()}
    return {**env, **{name: ",".join(gpus) for name, gpus in chosen.items()}}


def temporary_directory(pid: int) -> str:
    """The temporary directory of an isolated rank. The path is short, because names of sockets have at most 107 bytes."""
    return f"/tmp/ccbed-{pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """A node's ranks of a gang (value of ``gang.start``). ``link``: the shaping of the bed's links.

    ``leaves``: rank -> the leaf switch of its node in the fabric.
    ``secret_names``: environment variables that are secret. ``umask``: of the user who began the run.
    ``work_dir``: of the user's script or module. ``isolation``: of a script's reference run.
    ``begin``: SHA-256 of the value of ``run.begin``; the agent writes it into its own events, so that every node confirms it.
    ``steps_awaited``: a fault or the end of the run depends on steps, so that ranks report them often all the time.
    ``is_elastic``: a later attempt may have fewer ranks, so what a rank draws must not depend on their number.
    ``environment``: the user's variables, which replace those of the node; None: the ranks have those of the node. Never in
    the history. ``links``: the link probe of an earlier run, with the directions in which these ranks send.
    """

    run: str
    epoch: int
    world_size: int
    nodes: int
    group_rank: int
    ranks: tuple[int, ...]
    master_addr: str
    master_port: int
    backend: str
    timeout_s: float
    max_restarts: int
    workload: str
    params: Mapping[str, Any]
    seed: int
    payload: str
    out: str
    checkpoints: str
    interface: str
    data: str | None = None
    resume: Resume | None = None
    holds: tuple[Hold, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    deadline_s: float = 3600.0
    link: LinkSpec | None = None
    leaves: tuple[int, ...] = ()
    begin: str = ""
    secret_names: tuple[str, ...] = ()
    umask: int = 0o077
    work_dir: WorkDir | None = None
    isolation: Isolation | None = None
    is_elastic: bool | None = None
    steps_awaited: bool | None = None
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    links: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The imports of a reserve for a script. ``problem``: why no script may run in it; ``end``: what ended the imports.

    ``read``: the variables that the imports have read; ``files``: name -> (time of the last change in ns, bytes).
    """

    modules: int = 0
    end: str = ""
    problem: str = ""
    read: tuple[str, ...] = ()
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
