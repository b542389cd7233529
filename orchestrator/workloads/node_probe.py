"""Probes the hardware of every node: matrix products, memory, disk, clock, CPU, network interface, GPU health, equal bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from ..model.frozen import dataclass
from ..rank import probes
from ..rank.node_probe.probe_results import ProbeParams

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("no-step-lost", "no-hang", "hardware-probed", "same-bits")
#: dtypes of matrix products on a GPU, and those that a CPU computes as well. tf32 is float32 on tensor cores.
DTYPES = ("float32", "float64", "bfloat16", "float16", "tf32")
DISK_TOOLS = ("auto", "fio", "ccbed")
ON_CPU = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(ProbeParams):
    """Parameters.

    probes      clock | copies | cpu | disk | gemm | gpu-health | memory | nic | sdc | versions; empty: all of them
    repeats     repeats of every figure
    repeat_s    approximate seconds of one repeat of a rate
    dtypes      of matrix products: float32 | float64 | float16 | bfloat16 | tf32 (GPU); empty: float32 and float64, on a GPU all
    disk_mib    MiB of the file that the disk probe writes and reads
    disk_tool   auto: fio where it is installed on the node, else ccbed | fio | ccbed; figures by fio have other names
    memory_mib  MiB of each of the three arrays of the memory probe; 0: four times the last-level cache, 256 at most
    nic_mib     MiB that each node sends to the next one while the counters of its interface are watched
    in_turn     ranks on one host are probed one after the other; otherwise at the same time
    """

    #: Probes send no chunks that are worth a record.
    record: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.probes:
            object.__setattr__(self, "probes", probes.names())


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    return list(_problems(params))


def _problems(params: Params) -> Iterator[str]:
    known = probes.names()
    for name in params.probes:
        if name not in known:
            yield f"probes: must be among {', '.join(known)} (got {name!r})"
    if len(set(params.probes)) < len(params.probes):
        yield "probes: a probe is named twice"
    for name in params.dtypes:
        if name not in DTYPES:
            yield f"dtypes: must be among {', '.join(DTYPES)} (got {name!r})"
    for field, least, greatest in (
        ("repeats", 1, 1000),
        ("disk_mib", 1, 1 << 20),
        ("memory_mib", 0, 1 << 20),
        ("nic_mib", 1, 1 << 16),
    ):
        if not least <= getattr(params, field) <= greatest:
            yield f"{field}: must be from {least} to {greatest} (got {getattr(params, field)})"
    if params.disk_tool not in DISK_TOOLS:
        yield f"disk_tool: must be one of {', '.join(DISK_TOOLS)} (got {params.disk_tool!r})"
    if not 0.001 <= params.repeat_s <= 60:
        yield f"repeat_s: must be from 0.001 to 60 (got {params.repeat_s:g})"


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of probes: each is a step."""
    return len(params.probes)


def run(ctx: context.RankContext) -> None:
    from ..rank.node_probe import probe_run

    probe_run.run(ctx)
