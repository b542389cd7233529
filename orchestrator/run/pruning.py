"""Find and remove the leftovers of ended runs: on the hosts of beds, in the state directory, in the directory of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..core.bed.prunable import KEEP_BYTES, KEPT_ON_BED, MIN_AGE_S, OLDER_THAN_S, Leftover, Removal, Report, removals
from ..model.bed import BedSpec
from ..model.errors import CcbedError, UsageError
from ..model.frozen import dataclass
from ..model.provider import Provider
from ..node.hostlink.bed_files import EXEC, PAYLOAD, RUN
from ..store import bed_files, controller_leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Keep everything younger than ``older_than_s``, up to ``keep_bytes`` in each directory and up to ``keep`` runs and nights.

    ``age`` and ``size`` format.
    """

    older_than_s: float = OLDER_THAN_S
    keep_bytes: int = KEEP_BYTES
    keep: int | None = None
    age: Callable[[float], str] = lambda seconds: f"{seconds:.0f} s"
    size: Callable[[int], str] = lambda count: f"{count} bytes"

    def choose(self, leftovers: Iterable[Leftover], keep: Mapping[str, int] | None = None) -> tuple[Removal, ...]:
        return removals(
            leftovers,
            older_than_s=self.older_than_s,
            keep_bytes=self.keep_bytes,
            keep=keep,
            age=self.age,
            size=self.size,
        )


def of_bed(bed: BedSpec, provider: Provider) -> tuple[Leftover, ...]:
    """List the leftovers of ended runs on the bed's hosts. Raises CcbedError, OSError."""
    run = bed_files.open_run(Path(bed.workdir))
    return tuple(_leftover(bed, host, entry, run) for host, entry in provider.leftovers(bed))


def _leftover(bed: BedSpec, host: str, entry: Mapping[str, Any], run: bed_files.OpenRun | None) -> Leftover:
    kind, name, age_s = str(entry["kind"]), str(entry["name"]), float(entry["age_s"])
    in_use = ""
    if run and (kind == PAYLOAD or (kind == RUN and name in run.names)):
        in_use = f"run {run.run} is open"
    if kind == EXEC and age_s < MIN_AGE_S:
        in_use = "its program may still run"
    where = f"{bed.name}/{host}" if host else bed.name
    return Leftover(
        kind=kind, name=name, location=where, size_bytes=int(entry["size_bytes"]), age_s=age_s, in_use=in_use
    )


def prune_bed(report: Report, bed: BedSpec, provider: Provider, limits: Limits, *, dry_run: bool) -> None:
    """Remove the leftovers on the bed's hosts. The lock of the bed's run is held, so that no run begins that needs them."""
    try:
        listed = of_bed(bed, provider)
        if not limits.choose(listed, KEPT_ON_BED) or dry_run:
            report.add(listed, limits.choose(listed, KEPT_ON_BED))
            return
        with ExitStack() as stack:
            stack.enter_context(bed_files.run_lock(Path(bed.workdir), "prune", Path(bed.workdir)))
            listed = of_bed(bed, provider)
            chosen = limits.choose(listed, KEPT_ON_BED)
            removed = [removal.leftover for removal in chosen]
            provider.remove_leftovers(
                bed, [(item.location.partition("/")[2], item.kind, item.name) for item in removed]
            )
            report.add(listed, chosen)
    except UsageError as error:
        report.problems.append(f"bed {bed.name} is left as it is: {error}")
    except (CcbedError, OSError, ValueError, RuntimeError) as error:
        report.problems.append(f"bed {bed.name}: {error}")


def prune_local(
    report: Report, listed: Sequence[controller_leftovers.LocalLeftover], limits: Limits, *, dry_run: bool
) -> None:
    """Remove the leftovers in the controller's own directories."""
    keep = (
        None
        if limits.keep is None
        else dict.fromkeys((controller_leftovers.RUN, controller_leftovers.NIGHT), limits.keep)
    )
    chosen = limits.choose((local.leftover for local in listed), keep)
    paths = {id(local.leftover): local for local in listed}
    removed = []
    for removal in chosen:
        try:
            if not dry_run:
                controller_leftovers.remove(paths[id(removal.leftover)])
            removed.append(removal)
        except OSError as error:
            report.problems.append(f"{removal.leftover.location}/{removal.leftover.name}: {error.strerror}")
    report.add([local.leftover for local in listed], removed)
