"""Limits that ccbed ships for known hardware, until a baseline has floors for it: a worse figure warns, and never fails."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...core.spec import written_values
from ...model.events import ProbeDone
from ...model.frozen import replace
from ...store import bundle, paths
from ..night_judgement import Judged
from ..run_record import RunRecord
from . import floor_limits
from .figures import Series

FILE = Path(__file__).parents[1] / "shipped_limits.yml"
KIND = "shipped limit"


@functools.cache
def read() -> tuple[SimpleNamespace, ...]:
    """The limits of the file, each with its ``floor``, and as ``source`` the title and address of what says that it is reached."""
    import yaml

    document: dict[str, Any] = yaml.safe_load(FILE.read_text())
    share, sources = 1 - written_values.share(document["margin"]), document["sources"]
    return tuple(
        SimpleNamespace(
            **entry, floor=entry["reached"] * share, source="{title}, {at}".format_map(sources[entry["sources"][-1]])
        ) for entry in document["limits"]
    )  # fmt: skip


def judge(series: Iterable[Series], accepted: Collection[str], runs: Iterable[RunRecord]) -> Iterator[Judged]:
    """``accepted``: hardware that a baseline has floors for, which replace these."""
    without_floor = (entry for entry in series if entry.key.hardware not in accepted)
    known = [(entry, limit) for entry in without_floor for limit in read() if _is_of(limit, entry)]
    devices = _devices(runs) if known else {}
    for entry, limit in known:
        reference = (
            f"the limit that ccbed ships for {limit.part}: {limit.reached:g} {limit.unit} is reached of {limit.sheet:g}"
            f" ({limit.source})"
        )
        for judged in floor_limits.judge(entry, limit.floor, entry.cells[0], reference, KIND):
            if devices.get((judged.finding.node or "").partition(":")[0]) == {limit.part}:
                is_missed, warning = judged.state == "fail", replace(judged.finding, outcome="warn")
                yield replace(judged, state="warn", finding=warning) if is_missed else judged


def _devices(runs: Iterable[RunRecord]) -> dict[str, set[str]]:
    """Node -> what torch calls the devices that were measured: the driver names a slice of a GPU as the whole."""
    devices: dict[str, set[str]] = {}
    for record in runs:
        with suppress(paths.TornBundleError):  # the judgement says it
            for event in bundle.read_history(Path(record.directory)).of(ProbeDone):
                if name := (event.data.facts or {}).get("gemm device"):
                    devices.setdefault(record.names.get(event.node or "", event.node or ""), set()).add(name)
    return devices


def is_met(judged: Judged) -> bool:
    return judged.state == "pass" and judged.compared is not None and judged.compared.kind == KIND


def _is_of(limit: SimpleNamespace, series: Series) -> bool:
    """Return whether the nodes of the series have this GPU and no other."""
    is_same = (series.metric.name, series.metric.unit) == (limit.metric, limit.unit)
    return is_same and bool(re.fullmatch(rf"\d+x {re.escape(limit.part)}, (?!.*, [\d.]+x ).*", series.key.hardware))
