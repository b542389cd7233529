"""Compares what the job itself saves, which is its state: the checkpoints of one step, key by key, in a run and its undisturbed reference.

Where random states are lost, and nothing can be equal, a restarted reference that had them put back shows the rest.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from ...model.frozen import replace
from ...model.run import Control, Twin
from . import rounding
from .completeness import Row, incomparable, saved_copies, worst
from .completeness import rows as all_rows
from .kept import KeptFacts, repeats, step_of, unrepeated
from .resumption import Lineage
from .state_parts import UNOBSERVED, Result

PART, DATA, COPIES = "saved state", "data position", "copies of the model"
#: Steps after a resumption in which numbers differ by no more than ``ROUNDING`` of the largest of their key, or ``LEAST``,
#: where sums in another order explain it.
SOON, ROUNDING, LEAST = 16, 1e-2, 1e-5
#: Norms of saved tensors differ by less, where those of the weights differ by less than a tenth of it: else what rounds grows, as
#: a bias before a batch norm does in Adam.
NORMS = 1e-3
#: By how much norms differ, of what they changed, that were not resumed (measured: 1; 1e-6 where they round); and what rounds anyway.
MOVED, RESOLUTION = 0.1, 1e-6
#: How a doubt begins that lost random states leave.
ASIDE = "random states were lost"
#: Keys that a restart changes rightly, or that no two runs share.
_OF_THE_RUN = re.compile(
    r"(?<![a-z])((wall|run|up)?times?(?!_?step)|timestamps?|datetimes?|dates?|host(name)?s?|(file)?paths?|uuid|run_?id"
    r"|restart(s|ed)?|resum\w*|versions?|elapsed)(?![a-z])"
)
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r'"=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"')
_Keys = Mapping[str, str]
_Saves = Mapping[str, _Keys]


def row(
    facts: KeptFacts | Control, twin: Twin, *, rounds: bool, same_size: bool = True, without: Collection[str] = ()
) -> Row | None:
    """Judge by the checkpoints after the first resumption; None where none of them can be compared.

    A key that differs although the weights are equal was not resumed. Where a restart changes sums by rounding (``rounds``), and
    weights or optimizer states differ, only numbers compare, and soon. What differs before the failure as well, such as times, is left out.
    ``same_size``: whether the gang kept its size; else lists with an entry for each rank have other lengths.
    ``without``: keys of the checkpoint that are left out, with all that is below them.
    """
    base = _first_base(facts)

    def is_soon(step: int) -> bool:
        return any(start < step <= start + SOON for start in (base, facts.base or 0, *facts.restarts))

    control = twin.control.saves if twin.control else {}
    until = min(base, _first_base(twin.control)) if twin.control else base
    noise = _differing(facts.saves, twin.saves, until) | _differing(control, twin.saves, until)
    absent = {
        name for s, keys in facts.saves.items() if int(s) <= until for name in _lacking(keys, twin.saves.get(s, {}))
    }
    count: set[str] = set()
    for step in sorted(int(step) for step in facts.saves.keys() & twin.saves.keys() if int(step) > base):
        own, other = facts.saves[str(step)], twin.saves[str(step)]
        is_same = _has_same_weights(own, other, with_optimizer=rounds)
        keys = {key for key in own.keys() & other.keys() - noise if not _is_below(_name(key), without)}
        # an optimizer without states does not show whether tensors that the job keeps beside it are summed in another order
        is_exact = is_same and not (rounds and not any(" optimizer." in key for key in own))
        if is_exact:
            keys = {key for key in keys if " norms." not in key}
        else:
            is_known = rounds and is_soon(step)
            exact = {k for k in keys if is_same and not _has_norms(k, own)}
            keys = exact | {k for k in keys if is_known and _number(own[k]) is not None}
        rounded = () if is_exact else _until(step, facts.saves, twin.saves)
        of_weights = {key for key in keys if " norms.weights." in key}
        is_close = [_is_equal(own[key], other[key], _of(key, rounded), NORMS / 10) for key in of_weights]
        moved = set[str]() if is_exact else _moved_otherwise(own, other, twin.saves.get(str(base), {}), keys)
        keys -= of_weights if is_same or (is_close and all(is_close)) else {key for key in keys if " norms." in key}
        bounds = {key: NORMS if " norms." in key else ROUNDING for key in keys}
        changed = sorted(k for k in keys if k in moved or not _is_equal(own[k], other[k], _of(k, rounded), bounds[k]))
        lacking = (name for name in _lacking(own, other) - absent if not _is_below(name, without))
        if same_size and (lost := sorted(lacking)):
            text = f"the checkpoint of step {step} has fewer entries {lost[0]} than the reference run's"
            return Row(part=PART, result="fail", text=text, who="the job")
        if changed:
            names = ", ".join(_shown(key, own[key], other[key]) for key in changed[:3]) + (
                ", ..." if len(changed) > 3 else ""
            )
            text = f"the checkpoint of step {step} differs from the reference run's in {names}"
            return Row(part=PART, result="fail", text=text, who="the job")
        count |= keys
    left_out = f", without {', '.join(sorted(map(_name, noise))[:3])}" if noise else ""
    text = f"{len(count)} keys of its checkpoints as in the reference run{left_out}"
    return Row(part=PART, result="pass", text=text, keys=frozenset(map(_name, count))) if count else None


def _has_norms(key: str, keys: Iterable[str]) -> bool:
    return any(name.startswith(key.replace(" tensors.", " norms.tensors.") + ".") for name in keys)


def _moved_otherwise(own: _Keys, other: _Keys, start: _Keys, keys: Iterable[str]) -> set[str]:
    """Norms of saved tensors, most of which differ by a share of what changed since ``start``, as an average that began anew.

    However small the rate is; and by much more than the norms of the weights do.
    """
    known = {
        k: [_number(saved.get(k, "")) or 0.0 for saved in (own, other, start)]
        for k in keys
        if " norms." in k and k in start
    }
    errors = {key: abs(a - b) / b for key, (a, b, _) in known.items() if b}
    least = max([RESOLUTION, *(100 * error for key, error in errors.items() if " norms.weights." in key)])
    result = set[str]()
    for _, group in itertools.groupby(sorted(errors), key=lambda key: key.rpartition(".")[0]):
        members = [key for key in group if " norms.weights." not in key]
        moves = [
            abs(a - b) > MOVED * abs(b - c) and errors[key] > least
            for key, (a, b, c) in ((k, known[k]) for k in members)
        ]
        result |= {*members} if 2 * sum(moves) > len(moves) else set()
    return result


def _first_base(facts: KeptFacts | Control) -> int:
    """The step that the first of all restarts resumed from: later checkpoints may have lost a key; those of step 0 lose nothing."""
    return min(filter(None, (facts.base, *facts.restarts)), default=0)


def with_copies(rows: dict[str, Row], saved: Row | None) -> dict[str, Row]:
    """A copy of the model that no module holds is observed in the checkpoints that follow."""
    row, names = rows.get("copies of the model"), saved.keys if saved and saved.result == "pass" else ()
    keys = {name[: dot.start()] for name in names for dot in re.finditer(r"\.|$", name)}
    key = next((key for key in keys if row and row.text == UNOBSERVED.format(key)), None)
    text = f"{key} is as in the checkpoints of the reference run"
    return rows | {row.part: replace(row, result="pass", text=text)} if row and key else rows


def with_lost_copies(rows: dict[str, Row], saved: Row | None, rest: Row | None) -> dict[str, Row]:
    """The rows, where the saved state differs in copies of the model: ``rest`` is the row without these."""
    are_copies = saved and saved.result == "fail" and not (rest and rest.result == "fail")
    known = (replace(saved, part="copies of the model"), rest) if saved and are_copies else (saved,)
    return rows | {row.part: row for row in known if row}


def _is_below(name: str, keys: Collection[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _lacking(own: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """The names, numbers left out, of which a file has fewer entries than in ``other``: a history that began anew."""
    files = {tuple(key.split(" ", 2)[:2]) for key in own}
    return {name for *file, name in _entries(other) - _entries(own) if tuple(file) in files}


def _entries(keys: Iterable[str]) -> Counter[tuple[str, str, str]]:
    """Rank, file and name of what is no tensor -> how many there are with other numbers in the name."""
    parts = (key.split(" ", 2) for key in keys if " other." in key and not _is_of_the_run(key))
    return Counter((rank, file, _DIGITS.sub("#", _name(f"{rank} {file} {name}"))) for rank, file, name in parts)


def _until(last: int, *saves: _Saves) -> list[Mapping[str, str]]:
    return [keys for known in saves for step, keys in known.items() if int(step) <= last]


def _of(key: str, saves: Iterable[Mapping[str, str]]) -> list[str]:
    return [saved.get(key, "") for saved in saves]


def _is_equal(own: str, other: str, earlier: Iterable[str], bound: float) -> bool:
    """``earlier``: all values of this key until then, where rounding may explain a difference."""
    numbers = [abs(number) for value in earlier if (number := _number(value)) is not None]
    first, second = _number(own), _number(other)
    if not numbers or first is None or second is None:
        return own == other
    return abs(first - second) <= max(LEAST, bound * max(numbers))


def _number(value: str) -> float | None:
    """The number that a rank saved, as it is recorded: ``"=1024.0"``."""
    match = _NUMBER.fullmatch(value)
    return float(match[1]) if match else None


def _shown(key: str, own: str, other: str) -> str:
    numbers = _number(own), _number(other)
    return _name(key) if None in numbers else f"{_name(key)} ({numbers[0]:g}, it is {numbers[1]:g} there)"


def _differing(own: _Saves, other: _Saves, until: int) -> set[str]:
    """The keys that differ in a checkpoint of a step until then."""
    steps = [step for step in own.keys() & other.keys() if int(step) <= until]
    of_the_run = {key for keys in own.values() for key in keys if _is_of_the_run(key)}
    return of_the_run | {key for s in steps for key in own[s].keys() & other[s].keys() if own[s][key] != other[s][key]}


def _is_of_the_run(key: str) -> bool:
    """Judge by the words of its name: ``sentiment`` has no time in it, and ``startTime`` and ``start_time`` have."""
    return bool(_OF_THE_RUN.search(_INNER_CAPITAL.sub("_", _name(key)).lower()))


def _has_same_weights(own: Mapping[str, str], other: Mapping[str, str], *, with_optimizer: bool) -> bool:
    """``with_optimizer``: and the same optimizer states, where the last bits of a sum may be lost in the weights."""
    keys = [key for key in own if key.endswith(" weights")]
    if with_optimizer:
        keys += [key for key in own.keys() & other.keys() if " optimizer." in key]
    return any(key.endswith(" weights") for key in keys) and all(own[key] == other.get(key) for key in keys)


def _name(key: str) -> str:
    """``ema`` of ``0 snapshot.pt tensors.ema``."""
    name = key.split(" ", 2)[2]
    return re.sub(r"^(other\.|(norms\.)?tensors\.)", "", name) or "its tensors"


def restored_parts(lines: Lineage) -> dict[str, tuple[str, str]]:
    """Part -> result and text of the last resumption of a restarted reference."""
    rows = all_rows(lines, lines.resumptions[-1]) if lines.resumptions else ()
    return {part: (row.result, row.text) for part, row in worst(rows).items()}


def kept_random_states(lines: Lineage) -> bool:
    """Return whether each resumption is known to have had its random states, or to need none."""
    every = [worst(all_rows(lines, resumption)).get("RNG") for resumption in lines.resumptions]
    return all(row is not None and row.result in ("pass", "not applicable") for row in every)


def put_back(
    lines: Lineage, facts: KeptFacts, twin: Twin | None, may_lose: Collection[str] = ()
) -> tuple[Result, str, str]:
    """Return whether a restarted reference that had its random states put back equals the undisturbed run.

    The reason, and the part that differs, if one is known to. ``may_lose``: parts that it may lack; without its data position it
    computes something else.
    """
    control = twin.control if twin else None
    if twin is None or control is None:
        return "unknown", "there is no restarted reference: --reference makes one", ""
    result, why = control.parts.get("RNG", ("unknown", "not recorded"))
    if control.base != facts.base:
        return "unknown", f"the restarted reference resumed from step {control.base}", ""
    if result in ("fail", "unknown"):
        return "unknown", why, ""
    failing = {part: text for part, (other, text) in control.parts.items() if other == "fail"}
    lost = [(part, f"{part} still differs ({text})") for part, text in failing.items() if part not in may_lose]
    if DATA in failing and DATA in may_lose:
        return ("fail" if lost else "pass"), "; ".join(text for _, text in lost) or "its data position differs", ""
    others = [fact for fact in unrepeated(twin, facts) if fact[2] in ("batch", "inputs") or not fact[0]]
    if others and not lost:  # more than sums in another order, as on a GPU
        return "unknown", incomparable(others), ""
    beyond = rounding.beyond(control, twin, rounding.least(lines.attempts))
    copies = saved_copies(lines.resumptions[-1]) if COPIES in may_lose else ()
    saved = row(control, twin, rounds=repeats(twin, facts), without=copies)
    lost += [("", beyond[1])] if beyond and not lost else []
    lost += [(PART, saved.text)] if saved and saved.result == "fail" else []
    until = min(max((step_of(n) for n in own if "weights@" in n), default=0) for own in control.digests.values())
    if not lost:
        return "pass", f"all other parts were equal through step {until}", ""
    return "fail", "; ".join(text for _, text in lost), next((part for part, _ in lost if part), "")


def not_drawn(data: Row, lines: Lineage, facts: KeptFacts, twin: Twin | None) -> Row:
    """The row of a data position; where data differ although random states were put back, a lost place in them is why."""
    result, _, part = put_back(lines, facts, twin)
    if (result, part) != ("fail", data.part) or data.result != "fail" or twin is None or twin.control is None:
        return data
    return replace(data, text=f"{twin.control.parts[part][1]}, and with random states put back")


def random_states_aside(result: Result, why: str) -> str:
    """Return what ``put_back`` says of everything but random states, in words."""
    if result == "unknown":
        return f"{ASIDE}, and what else differs is not known: they could not be put back ({why})"
    return f"with random states put back, {why}"


def with_reference(rows: dict[str, Row], lines: Lineage, facts: KeptFacts, twin: Twin) -> dict[str, Row]:
    """The rows of a run. Where its random states are lost, a restarted reference decides what they leave unknown."""
    control, lost = twin.control, rows["RNG"]
    if control is None or lost.result != "fail":
        return rows
    result, why, _ = put_back(lines, facts, twin)
    if result == "unknown":
        text = f"{lost.text}; they could not be put back to compare the rest ({why})"
        return rows | {"RNG": replace(lost, text=text)}
    for part, (other, text) in control.parts.items():
        if part in rows and rows[part].result == "unknown":
            shown = f"{text or 'as before'}, with random states put back"
            rows |= {part: replace(rows[part], result=cast(Result, other), text=shown)}
    return rows | {"RNG": replace(lost, text=f"{lost.text}; with them put back, {why}")}


def with_hidden(
    rows: dict[str, Row], lines: Lineage, facts: KeptFacts, twin: Twin | None, may_lose: Collection[str]
) -> dict[str, Row]:
    """The rows of a run whose lost random states are accepted: what only the restarted reference shows is a row as well."""
    lost = rows.get("RNG")
    if lost is None or lost.result != "fail":
        return rows
    result, why, part = put_back(lines, facts, twin, may_lose)
    if result != "fail" or any(row.result == "fail" for name, row in rows.items() if name not in may_lose):
        return rows
    is_named = bool(part) and part not in rows
    name = part if is_named else "other state"
    text = f"with random states put back, {why}"
    return rows | {name: Row(part=name, result="fail" if is_named else "unknown", text=text, who=lost.who)}
