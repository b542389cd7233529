"""What probes yield, and what they know of their node. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.events import ComputedBits, ProbeDone, ProbeFigure
from ...model.frozen import dataclass

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeParams:
    """The parameters of the workload, which says what they mean."""

    probes: tuple[str, ...] = ()
    repeats: int = 5
    repeat_s: float = 0.2
    dtypes: tuple[str, ...] = ()
    disk_mib: int = 64
    disk_tool: str = "auto"
    memory_mib: int = 0
    nic_mib: int = 16
    in_turn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What a figure depends on, such as the size of a matrix or the kind of a file system."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A figure or a group of figures that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A defect that the hardware itself reports."""

    text: str


Result = ProbeFigure | ComputedBits | Fact | Missing | Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node of a rank. ``sharers``: the ranks on the same host, in order; ``local_rank``: of the rank in its node.

    ``directory``: in the node's own directory; ``shared``: in the directory of checkpoints. ``load_nvml``: the module pynvml,
    initialised; raises OSError where it is not usable. ``system``: the root of /proc and /sys.
    """

    params: ProbeParams
    rank: int
    world: int
    local_rank: int
    device: torch.device
    interface: str
    directory: Path
    shared: Path
    sharers: tuple[int, ...]
    load_nvml: Callable[[], Any]
    system: Path = Path("/")

    @property
    def has_gpu(self) -> bool:
        return self.device.type == "cuda"


NO_GPU = "the rank has no GPU"


def collect(node: Node, probe: str, results: Iterable[Result], clock: Callable[[], float]) -> ProbeDone:
    """The event of a probe. A probe that raises keeps what it measured before."""
    begin, kept, error = clock(), list[Result](), None
    try:
        for result in results:
            kept.append(result)
    except Exception as problem:  # noqa: BLE001 another probe may still work; the check of the run reports this one
        error = f"{type(problem).__name__}: {problem}"
    figures = tuple(result for result in kept if isinstance(result, ProbeFigure) and result.values)
    return ProbeDone(
        rank=node.rank, probe=probe, figures=figures or None,
        facts={result.name: result.text for result in kept if isinstance(result, Fact)} or None,
        missing=_missing(kept) or None,
        problems=tuple(result.text for result in kept if isinstance(result, Problem)) or None,
        bits=tuple(result for result in kept if isinstance(result, ComputedBits)) or None,
        error=error, took_s=round(clock() - begin, 3),
    )  # fmt: skip


def _missing(results: Iterable[Result]) -> dict[str, str]:
    reasons = {result.name: result.reason for result in results if isinstance(result, Missing)}
    empty = {result.name: "no repeat" for result in results if isinstance(result, ProbeFigure) and not result.values}
    return {**empty, **reasons}
