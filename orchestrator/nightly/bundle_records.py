"""Read a bundle as the index and the gates need it: which run it is, its figures with their keys, and its versions.

Metrics without a direction are left out: no gate can judge them. The times of single iterations are left out where their
percentiles are present.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..core.documents import decoder
from ..core.verdict.judge import EXIT_CODES
from ..model import codec
from ..model.frozen import dataclass, field
from ..model.plan import Plan
from ..model.trial import Trial
from ..store import bundle, index, paths
from . import hardware_key, night_files
from .records import Key, Metric
from .run_record import Measurement, RunRecord
from .suite import RUNS

METRICS = "metrics.jsonl"
_HINT = "the run is left out; judge it again if its evidence is complete: ccbed check RUN"
_STARTED = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2})-(\d{2})-(\d{2})Z-.*")
#: The probe of a link between two ranks, as core/verdict/run_metrics.py names it.
_LINK = re.compile(r"link (\d+)-(\d+) (.+)")
#: The figures of a collective, as core/verdict/run_metrics.py names them.
_OF_SIZE = re.compile(
    r"(.+?) (algbw|busbw|model|measured over model|of line rate|wrong|(?:time|chunk|cct)(?: (?:min|p50|p95|p99|max))?)"
)
#: Figures of the run itself, which its record has in fields of their own.
_DURATION, _TTR = "duration", "ttr"
_REUSED = (
    "a repeat measured no links: it reused the probe of an earlier run (fresh_probe: true measures them each time)"
)


class Line(msgspec.Struct, kw_only=True):
    """A line of ``metrics.jsonl``. Numbers that are not finite are text."""

    metric: str
    value: float | str
    unit: str = ""
    better: str = ""
    node: str | None = None
    rank: int | None = None
    size: int | None = None
    ceiling: float | None = None


_LINES = msgspec.json.Decoder(type=Line)


@dataclass(slots=True)
class _Figure:
    """The values of a metric on a node, while the lines are read. ``is_own``: of the node, not of the gang."""

    line: Line
    is_own: bool
    values: list[float] = field(default_factory=list)


def read(directory: Path) -> RunRecord:
    """The record of a bundle, complete or open. Raises TornBundleError, with path and reason, for one that is damaged."""
    try:
        return _read(directory)
    except paths.TornBundleError as error:
        raise paths.TornBundleError(*error.problems, hint=_HINT) from None
    except OSError as error:
        raise paths.TornBundleError(f"{error.filename or directory}: {error.strerror}", hint=_HINT) from None


def _read(directory: Path) -> RunRecord:
    if not (directory / bundle.TRIAL).is_file():
        raise paths.TornBundleError(f"{directory}: half-written: it has no {bundle.TRIAL}")
    trial = _document(Trial, directory, bundle.TRIAL)
    plan = _document(Plan, directory, bundle.PLAN)
    about: Mapping[str, Any] = _document(decoder.About, directory, bundle.BUNDLE)
    fingerprint: Mapping[str, Any] = _document(decoder.Fingerprint, directory, bundle.FINGERPRINT)
    outcome = index.read_state(directory)
    lines, link_note = _without_reused_links(directory, tuple(read_lines(directory)))
    facts = {node: read_facts(directory, node) for node in dict.fromkeys((*plan.slots, *plan.spares))}
    keys = _Keys(trial, plan, facts)
    measurements, notes = _measurements(trial, plan, keys, lines)
    is_night = directory.parent.name == RUNS and night_files.is_night(directory.parent.parent)
    origin = night_files.parse_reason(about.get("reason", "")) if is_night else None
    return RunRecord(
        run=directory.name, directory=str(directory), bed=plan.bed, trial=trial.name, workload=trial.workload,
        started=_started(directory.name), outcome=outcome, is_sealed=bundle.is_sealed(directory),
        exit=EXIT_CODES.get(outcome), duration_s=_first(lines, _DURATION), ttr_s=_first(lines, _TTR),
        night=directory.parent.parent.name if is_night else "", cell=origin.cell if origin else "",
        repeat=origin.repeat if origin else 0, measurements=measurements,
        hardware={node: keys.hardware[node] for node in plan.slots},
        reference=_with_clock_of(plan.slots, facts), rank_0=_rank_label(0, plan.slots, trial.world.ranks_per_node),
        leaves={name: str(node.leaf) for name, node in plan.nodes.items()}, link_hosts=link_hosts(plan), suspects={
            node: hardware_key.suspects(known, str(fingerprint.get("code", "")), _machine(plan, node))
            for node, known in facts.items() if known
        },
        notes=(*notes, *link_note),
    )  # fmt: skip


def _without_reused_links(directory: Path, lines: tuple[Line, ...]) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The lines without the probe of an earlier run, which a run writes again (run/known_links.py); and a note on that.

    A copy is no measurement of this run: as a repeat it would hide a link that changed since, or count a disturbance twice.
    """
    if not any(_LINK.fullmatch(line.metric) for line in lines):
        return lines, ()
    if b'"reused_from":"' not in paths.data(directory, bundle.HISTORY):
        return lines, ()
    return tuple(line for line in lines if not _LINK.fullmatch(line.metric)), (_REUSED,)


def _with_clock_of(slots: tuple[str, ...], facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The first of these nodes, and those that share its kernel and so its clock."""
    boot = facts.get(slots[0], {}).get("boot") if slots else None
    return tuple(name for name in slots if name == slots[0] or (boot and facts.get(name, {}).get("boot") == boot))


def _machine(plan: Plan, node: str) -> str:
    """The host of a node by its name outside of the bed; empty if it is not known."""
    known = plan.nodes.get(node)
    return known.machine or known.host if known else ""


def link_hosts(plan: Plan) -> dict[str, str]:
    """Node -> its host; empty in an emulated fabric with a rate, where every node has a link of its own."""
    if plan.link and plan.link.rate:
        return {}
    return {name: node.host or name for name, node in plan.nodes.items()}


def read_facts(directory: Path, node: str) -> Mapping[str, Any]:
    """The ``system.json`` of a node; empty where the bundle has none. Raises TornBundleError for a damaged one."""
    path = f"nodes/{node}/system.json"
    if not (directory / path).exists():
        return {}
    facts: Mapping[str, Any] = _document(dict[str, Any], directory, path)
    return facts


def read_lines(directory: Path) -> Iterator[Line]:
    """The lines of ``metrics.jsonl``, without iterations that percentiles sum up; none before the run has ended.

    Raises TornBundleError.
    """
    if not (directory / METRICS).exists():
        return
    summed_up: set[tuple[str, int | None]] = set()
    for number, text in enumerate(paths.data(directory, METRICS).splitlines(), start=1):
        try:
            line = _LINES.decode(text)
        except (ValueError, RecursionError) as error:
            raise paths.TornBundleError(f"{directory / METRICS}:{number}: not a metric ({error})") from None
        if line.metric.endswith(" p50"):
            summed_up.add((line.metric.removesuffix(" p50"), line.size))
        if (line.metric, line.size) not in summed_up:
            yield line


def _document(cls: Any, directory: Path, path: str) -> Any:
    """Faster than ``paths.built``, which also looks for keys that appear twice: an index reads thousands of bundles."""
    try:
        return decoder.convert(cls, decoder.parse(paths.data(directory, path)))
    except decoder.DocumentError as error:
        raise paths.TornBundleError(f"{directory / path}: {error}") from None


def _started(run: str) -> str:
    match = _STARTED.fullmatch(run)
    return f"{match[1]}T{match[2]}:{match[3]}:{match[4]}Z" if match else ""


def _number(value: float | str) -> float | None:
    """None for a value that is not finite."""
    return value if isinstance(value, float | int) and math.isfinite(value) else None


def _first(lines: Iterable[Line], metric: str) -> float | None:
    return next((_number(line.value) for line in lines if line.metric == metric), None)


def _measurements(
    trial: Trial, plan: Plan, keys: _Keys, lines: Iterable[Line]
) -> tuple[tuple[Measurement, ...], tuple[str, ...]]:
    """The measurements, and notes on what was left out. A figure without a finite value is there, without values."""
    figures: dict[tuple[str, str], _Figure] = {}
    notes: list[str] = []
    for line in lines:
        if line.better not in ("higher", "lower"):
            continue
        node, name, is_own = _owner(line, plan.slots, trial)
        figure = figures.setdefault((node, name), _Figure(line, is_own))
        value = _number(line.value)
        if value is None:
            notes.append(f"{_label(node, name)} is {line.value}: not a number that can be compared")
        elif (line.unit, line.better) != (figure.line.unit, figure.line.better):
            notes.append(f"{_label(node, name)} has two units or directions: the second is left out")
        else:
            figure.values.append(value)
    measurements = []
    for (node, name), figure in figures.items():
        key = keys.of(node if figure.is_own else "")
        if key is None:
            notes.append(f"{_label(node, name)}: the hardware of its nodes is not known: not comparable")
        else:
            line = figure.line
            metric = Metric(
                name=name, unit=line.unit, better="higher" if line.better == "higher" else "lower",
                ceiling=_number(line.ceiling) if line.ceiling is not None else None,
            )  # fmt: skip
            measurements.append(Measurement(node=node, metric=metric, key=key, values=tuple(figure.values)))
    return tuple(measurements), tuple(dict.fromkeys(notes))


def _label(node: str, metric: str) -> str:
    return f"{node}: {metric}" if node else metric


def _owner(line: Line, slots: tuple[str, ...], trial: Trial) -> tuple[str, str, bool]:
    """The node that the figure belongs to (empty: the gang), its name, and whether it is the node's own.

    With several ranks on a node, ``n2:3`` is local rank 3 of n2: the figures of its GPUs are not the same series. A direction of
    a link is named by its nodes, because ranks move.
    """
    name = _name(line)
    per_node = trial.world.ranks_per_node
    if match := _LINK.fullmatch(name):
        ends = [_rank_label(int(rank), slots, per_node) for rank in match.groups()[:2]]
        return "->".join(ends), f"link {match[3]}", False
    if line.node is None:
        return "", name, False
    has_ranks = per_node > 1 and line.rank is not None
    return f"{line.node}:{line.rank % per_node}" if has_ranks and line.rank is not None else line.node, name, True


def _name(line: Line) -> str:
    """Put the size of the buffer before the last words, which say what it is: all-reduce ring float32 sum 4 MiB busbw."""
    if line.size is None:
        return line.metric
    match = _OF_SIZE.fullmatch(line.metric)
    return f"{match[1]} {_size(line.size)} {match[2]}" if match else f"{line.metric} {_size(line.size)}"


def _size(count: int) -> str:
    """Bytes in the largest unit in which they are a whole number: two sizes never share a name."""
    units = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
    return next((f"{count // unit} {name}" for unit, name in units if count and count % unit == 0), f"{count} B")


def _rank_label(rank: int, slots: tuple[str, ...], per_node: int) -> str:
    slot, local = divmod(rank, per_node)
    name = slots[slot] if slot < len(slots) else f"rank {rank}"
    return f"{name}:{local}" if per_node > 1 else name


class _Keys:
    """The keys of a run, computed once for each node."""

    def __init__(self, trial: Trial, plan: Plan, facts: Mapping[str, Mapping[str, Any]]) -> None:
        self._trial, self._plan = trial, plan
        hosts = {name: node.host or name for name, node in plan.nodes.items()}
        on_host = Counter(hosts.get(name, name) for name in plan.slots)
        self.hardware = {
            name: hardware_key.describe_node(known, on_host[hosts.get(name, name)]) for name, known in facts.items()
        }
        self._known: dict[str, Key | None] = {}

    def of(self, node: str) -> Key | None:
        """The key of a node's own figure, or of the gang's if ``node`` is empty. None: hardware not known."""
        name = node.partition(":")[0]
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def _make(self, node: str) -> Key | None:
        trial, plan = self._trial, self._plan
        if node:
            hardware = self.hardware.get(node, "")
            return hardware_key.node_key(hardware, trial, plan.backend, plan.threads) if hardware else None
        link = codec.plain(plan.link) if plan.link else None
        hardware = hardware_key.describe_gang((self.hardware[name] for name in plan.slots), link)
        return hardware_key.gang_key(hardware, trial, plan.backend, plan.threads) if hardware else None
