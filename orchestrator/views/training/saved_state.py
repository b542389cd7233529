"""What the job itself saves is its state: the checkpoints of one step, key by key, in a run and its undisturbed reference."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...model.run import Twin
from .completeness import Row
from .kept import KeptFacts

PART = "saved state"
#: Keys that a restart changes rightly, or that no two runs share.
_OF_THE_RUN = re.compile(r"time|date|host|path|uuid|run_?id|restart|resum|version|elapsed", re.IGNORECASE)
_Saves = Mapping[str, Mapping[str, str]]


def row(facts: KeptFacts, twin: Twin) -> Row | None:
    """By the checkpoints after the last resumption; None where none of them has the weights of the reference's of its step.

    A key that differs there although the weights are equal was not resumed. What differs before the failure as well, such as
    times, paths and host names, is left out.
    """
    base = facts.base or 0
    control = twin.control.saves if twin.control else {}
    until = min(base, twin.control.base) if twin.control else base
    noise = _differing(facts.saves, twin.saves, until) | _differing(control, twin.saves, until)
    later = sorted(int(step) for step in facts.saves.keys() & twin.saves.keys() if int(step) > base)
    compared = [step for step in later if _has_same_weights(facts.saves[str(step)], twin.saves[str(step)])]
    for step in compared:
        own, other = facts.saves[str(step)], twin.saves[str(step)]
        changed = sorted(key for key in own.keys() & other.keys() - noise if own[key] != other[key])
        if changed:
            names = ", ".join(_name(key) for key in changed[:3]) + (", ..." if len(changed) > 3 else "")
            text = f"the checkpoint of step {step} has the weights of the reference run's, and differs in {names}"
            return Row(part=PART, result="fail", text=text, who="the job")
    if not compared:
        return None
    count = len(
        {key for step in compared for key in facts.saves[str(step)].keys() & twin.saves[str(step)].keys() - noise}
    )
    left_out = f", without {', '.join(sorted(map(_name, noise))[:3])}" if noise else ""
    return Row(
        part=PART, result="pass", text=f"{count} keys of {len(compared)} checkpoints as in the reference run{left_out}"
    )


def _differing(own: _Saves, other: _Saves, until: int) -> set[str]:
    """The keys that differ in a checkpoint of a step until then."""
    steps = [step for step in own.keys() & other.keys() if int(step) <= until]
    of_the_run = {key for keys in own.values() for key in keys if _OF_THE_RUN.search(_name(key))}
    return of_the_run | {key for s in steps for key in own[s].keys() & other[s].keys() if own[s][key] != other[s][key]}


def _has_same_weights(own: Mapping[str, str], other: Mapping[str, str]) -> bool:
    keys = [key for key in own if key.endswith(" weights")]
    return bool(keys) and all(own[key] == other.get(key) for key in keys)


def _name(key: str) -> str:
    """``ema`` of ``0 snapshot.pt tensors.ema``."""
    name = key.split(" ", 2)[2]
    return name.removeprefix("other.").removeprefix("tensors.") or "its tensors"
