"""Baselines: reviewed floors of one hardware model, a YAML file each. Nothing but `ccbed baseline accept` writes them."""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.spec import source_positions, trial_draft, written_values
from ..model.errors import UsageError
from ..model.frozen import dataclass, replace
from . import classes
from .records import Better, Key

#: Where baselines are, relative to the working directory.
DIRECTORY = Path("inventories/baselines")
#: The keys of a floor that a new acceptance changes.
_ACCEPTED = ("floor", "measured", "margin", "n", "evidence", "accepted")
#: A line of a key with a value, and the comment behind it.
_LINE = re.compile(
    r"""(?P<key>\s*(?:-\s+)?\w+:)\s*(?P<value>"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^#]*?)(?P<comment>\s+#.*)?"""
)
_ROUNDING = {"higher": decimal.ROUND_FLOOR, "lower": decimal.ROUND_CEILING}
_PLAIN = re.compile(r"[A-Za-z][\w ./+-]*[\w/+]")
_HEADER = """\
# Floors of one hardware model, written by `ccbed baseline accept` and reviewed by people. A night fails a node that is worse
# than a floor, and a node whose metric is missing. Change a floor here at will; comments are kept.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """An absolute limit of a metric. ``floor`` and ``measured`` in ``unit``; ``margin``: between them, 0.1 is 10 %.

    ``measured``: the median of the worst node; ``n``: values of all nodes; ``evidence``: the runs; ``accepted``: a date;
    ``gang``: the hardware of the gang, for a figure of a whole gang.
    """

    metric: str
    floor: float
    unit: str
    better: Better
    measured: float
    margin: float
    n: int
    evidence: tuple[str, ...]
    accepted: str
    trial: str
    workload: str
    parameters: str = ""
    gang: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """Return what a new acceptance replaces."""
        return self.metric, self.workload, self.parameters, self.gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """``hardware``: of a node, as ``hardware_key`` describes it; ``file``: where the floors are written."""

    hardware: str
    floors: tuple[Floor, ...]
    file: str = ""

    def key(self, floor: Floor) -> Key:
        return Key(hardware=floor.gang or self.hardware, workload=floor.workload, parameters=floor.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric that becomes a floor: the values of all nodes with this key, and the runs. ``trial``: of the runs.

    ``worst``: the median of the worst node.
    """

    metric: str
    unit: str
    better: Better
    key: Key
    trial: str
    worst: float
    values: tuple[float, ...]
    runs: tuple[str, ...]
    gang: bool = False


@dataclass(frozen=True, kw_only=True)
class _Head:
    hardware: str
    floors: Any = None


def read_all(directory: Path) -> tuple[Baseline, ...]:
    """The baselines in a directory, none if there is none. Raises UsageError with every mistake of all files."""
    baselines: list[Baseline] = []
    problems: list[str] = []
    files = sorted(file for file in directory.glob("*.yml") if file.name != classes.FILE) if directory.is_dir() else []
    for file in files:
        try:
            baselines.append(read(file))
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(
            *problems, hint=f"correct the files in {directory}, or write them again: ccbed baseline accept RUN"
        )
    return tuple(baselines)


def read(file: Path) -> Baseline:
    """Raises UsageError with a line for every mistake."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{file}: cannot be read: {reason}") from None
    return parse(text, str(file))


def parse(text: str, path: str) -> Baseline:
    """Raises UsageError with a line for every mistake."""
    document = source_positions.load(text, path)
    if not isinstance(document.content, dict):
        raise UsageError(f"{document.position()}: must be a mapping with `hardware` and `floors`")
    draft = trial_draft.Draft(document=document, content=document.content)
    draft.hints.append("ccbed baseline accept writes such a file")
    head = draft.convert_arguments((), _Head, draft.content, "key")
    items = head.get("floors") or []
    if not isinstance(items, list):
        draft.add_problem(("floors",), "must be a list of floors", items)
        items = []
    floors = [floor for index, item in enumerate(items) if (floor := _floor(draft, ("floors", index), item))]
    repeated = {floor.identity for floor in floors if sum(other.identity == floor.identity for other in floors) > 1}
    for identity in sorted(repeated):
        draft.add_problem(("floors",), f"{identity[0]} has two floors for the same workload and parameters")
    draft.raise_problems()
    return Baseline(hardware=head["hardware"], floors=tuple(floors), file=path)


def _floor(draft: trial_draft.Draft, where: source_positions.Path, item: Any) -> Floor | None:
    if not isinstance(item, dict):
        draft.add_problem(where, "must be a mapping with `metric` and `floor`", item)
        return None
    problems = len(draft.problems)
    try:
        share = {"margin": written_values.share(item["margin"])} if "margin" in item else {}
    except ValueError as error:
        share = {"margin": 0.0}
        draft.add_problem((*where, "margin"), str(error), item["margin"])
    arguments = draft.convert_arguments(where, Floor, {**item, **share}, "key")
    draft.enforce_minimums(where, arguments, {"floor": 0})
    return Floor(**arguments) if len(draft.problems) == problems else None


def accept(
    measured: Sequence[Measured], margins: Callable[[str], float], day: datetime.date
) -> dict[str, tuple[Floor, ...]]:
    """Hardware of nodes -> floors at a margin from the worst node, towards worse. None for a gang of several kinds of nodes."""
    floors: dict[str, list[Floor]] = {}
    for entry in measured:
        hardware = node_hardware(entry.key.hardware) if entry.gang else entry.key.hardware
        if not hardware:
            continue
        margin = margins(entry.metric)
        worse = 1 - margin if entry.better == "higher" else 1 + margin
        floors.setdefault(hardware, []).append(
            Floor(
                metric=entry.metric, floor=_rounded(entry.worst * worse, entry.better), unit=entry.unit, better=entry.better,
                measured=_rounded(entry.worst), margin=margin, n=len(entry.values), evidence=entry.runs,
                accepted=day.isoformat(), trial=entry.trial, workload=entry.key.workload, parameters=entry.key.parameters,
                gang=entry.key.hardware if entry.gang else "",
            )
        )  # fmt: skip
    return {hardware: tuple(entries) for hardware, entries in floors.items()}


def combine(nights: Iterable[Sequence[Measured]]) -> tuple[Measured, ...]:
    """The metrics of several runs or nights: of each the worst node of all. Raises UsageError for a metric whose unit changed."""
    together: dict[tuple[str, Key], Measured] = {}
    for entry in (entry for measured in nights for entry in measured):
        known = together.get((entry.metric, entry.key), entry)
        if (known.unit, known.better) != (entry.unit, entry.better):
            problem = f"{entry.metric}: is in {known.unit} and in {entry.unit} in what is accepted"
            raise UsageError(problem, hint="accept them one at a time")
        worst = (min if entry.better == "higher" else max)(known.worst, entry.worst)
        values = known.values if known is entry else known.values + entry.values
        runs = tuple(dict.fromkeys((*known.runs, *entry.runs)))
        together[entry.metric, entry.key] = replace(entry, worst=worst, values=values, runs=runs)
    return tuple(together.values())


def node_hardware(gang: str) -> str:
    """The nodes of a gang of one kind, from the description that ``hardware_key`` makes; empty for several kinds."""
    kinds = re.findall(r"(?:^|; )\d+ nodes of ([^;]+)", gang)
    return kinds[0] if len(kinds) == 1 else ""


def _rounded(value: float, better: Better | None = None) -> float:
    """Four digits; of a limit, ``better`` says which side is worse: it is rounded to that side."""
    rounded = decimal.Context(prec=4, rounding=_ROUNDING[better] if better else None)
    return float(rounded.create_decimal(f"{value:.12g}"))


def file_name(hardware: str) -> str:
    """``8x-nvidia-h100-64x-xeon-512-gib.yml``."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")[:120] + ".yml"


def merge(file: Path, hardware: str, floors: Sequence[Floor]) -> str:
    """The text of a baseline with these floors: those that it has are changed in their lines, so that comments stay.

    Raises UsageError for a file that is wrong, or is of another hardware model.
    """
    if not file.exists():
        return f"{_HEADER}hardware: {_scalar(hardware)}\nfloors:\n" + "".join(_item(floor, "  ") for floor in floors)
    baseline = read(file)
    if baseline.hardware != hardware:
        raise UsageError(
            f"{file}: is the baseline of {baseline.hardware}; these runs were on {hardware}",
            hint="give another file with -o, or none: each hardware model has its own",
        )
    text = file.read_text()
    document = source_positions.load(text, str(file))
    lines = text.splitlines()
    positions = {floor.identity: index for index, floor in enumerate(baseline.floors)}
    for floor in floors:
        if floor.identity in positions:
            _change(lines, document, positions[floor.identity], floor)
    indent = re.match(r"\s*", lines[document.line("floors", 0) - 1])
    added = [floor for floor in floors if floor.identity not in positions]
    merged = "\n".join(lines) + "\n" + "".join(_item(floor, indent[0] if indent else "  ") for floor in added)
    _verify(merged, file, baseline, floors)
    return merged


def _change(lines: list[str], document: source_positions.Document, index: int, floor: Floor) -> None:
    for key, value in _fields(floor):
        if key in _ACCEPTED:
            number = document.line("floors", index, key) - 1
            match = _LINE.fullmatch(lines[number])
            if match:
                lines[number] = f"{match['key']} {value}{match['comment'] or ''}"


def _verify(merged: str, file: Path, before: Baseline, floors: Sequence[Floor]) -> None:
    """A file that people have laid out in another way may not be edited line by line. Raises UsageError."""
    wanted = {floor.identity: floor for floor in (*before.floors, *floors)}
    try:
        after = {floor.identity: floor for floor in parse(merged, str(file)).floors}
    except UsageError:
        after = {}
    if after != wanted:
        raise UsageError(
            f"{file}: its layout cannot be edited without loss: each key of a floor needs a line of its own",
            hint="write to another file with -o, and merge the two by hand",
        )


def _item(floor: Floor, indent: str) -> str:
    fields = [f"{key}: {value}" for key, value in _fields(floor)]
    return f"{indent}- {fields[0]}\n" + "".join(f"{indent}  {field}\n" for field in fields[1:])


def _fields(floor: Floor) -> Iterator[tuple[str, str]]:
    """The keys and values as the file has them."""
    for key in Floor.__dataclass_fields__:
        value = getattr(floor, key)
        if key == "margin":
            yield key, f"{value * 100:g}%"
        elif isinstance(value, tuple):
            yield key, f"[{', '.join(_scalar(item) for item in value)}]"
        elif value != "":
            yield (
                key,
                _scalar(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value),
            )


def _scalar(text: str) -> str:
    """Quoted unless YAML reads it as the same text."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in ("yes", "no", "true", "false", "null", "on", "off")
    return text if is_plain else json.dumps(text, ensure_ascii=False)
