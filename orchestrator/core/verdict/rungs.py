"""The ladder of a training: survived, resumed whole, exact. Each rung follows from the verdicts of its checks.

Checks of no rung, such as ``fault-verified``, always count. Those of a rung count if the trial requires it or a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...model.trial import RUNGS
from ...model.verdict import Outcome, Verdict
from ...views import training

#: From the worst to the best.
PRECEDENCE: tuple[Outcome, ...] = ("fail", "unknown", "pass")
#: Rung -> its checks.
CHECKS: Mapping[str, tuple[str, ...]] = {
    "survived": (
        "finished", "resumed-newest", "resumed-from", "same-resume-step", "no-step-lost", "no-hang", "membership", "no-orphans",
    ),
    "whole": ("resume-complete", "replicas-identical"),
    "exact": ("equals-reference", "replay-equal", "bit-exact"),
}  # fmt: skip
#: Rung -> its name for people.
NAMES = {"survived": "survived", "whole": "resumed whole", "exact": "exact"}
#: Checks that only trainings have.
OF_TRAININGS = {"replay-equal", "bit-exact", "resume-complete"}


def counted(verdicts: Iterable[Verdict], require: str) -> tuple[Verdict, ...]:
    """The verdicts on which the outcome of a run depends. A difference that no part explains leaves *resumed whole* unknown."""
    verdicts = tuple(verdicts)
    names = {verdict.check for verdict in verdicts}
    if not OF_TRAININGS & names or (require == "whole" and "resume-complete" not in names):
        return verdicts  # nothing but equal bits shows that a built-in training resumed whole
    beyond = {name for rung in RUNGS[RUNGS.index(require) + 1 :] for name in CHECKS[rung]}
    below = tuple(verdict for verdict in verdicts if verdict.check not in beyond)
    text = unexplained(verdicts) if require == "whole" else ""
    doubt = Verdict(check=NAMES["whole"], outcome="unknown", text=text)
    return (*below, doubt) if text else below


def unexplained(verdicts: Iterable[Verdict]) -> str:
    """A difference from another execution of the same steps that no part of the state explains; empty if there is none."""
    known = {verdict.check: verdict for verdict in verdicts}
    if "resume-complete" not in known:
        return ""
    texts = (
        verdict.text
        for name in CHECKS["exact"]
        if (verdict := known.get(name))
        and verdict.outcome in ("fail", "unknown")
        and verdict.evidence.get(training.UNEXPLAINED)
    )
    return next(texts, "")


def others(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """The verdicts of no rung."""
    names = {name for checks in CHECKS.values() for name in checks}
    return (verdict for verdict in verdicts if verdict.check not in names)


def worst(verdicts: Iterable[Verdict]) -> Outcome:
    """The worst outcome without skipped checks. Without a verdict it is ``unknown``: there is no evidence."""
    outcomes = {verdict.outcome for verdict in verdicts} - {"skipped"}
    if "fail" in outcomes:
        return "fail"
    return "pass" if outcomes == {"pass"} else "unknown"


def overall(verdicts: Iterable[Verdict], outcome: str, kind: str = "", require: str = "exact") -> str:
    """The overall outcome for the exit code and every report: interrupted, broken, fail, unknown or pass.

    ``outcome`` and ``kind`` are those of ``run.end``; ``require``: the rung that the trial requires. A failed recovery from a
    planned fault is a finding about the system under test, not a failure of the bed.
    """
    if outcome == "interrupted":
        return "interrupted"
    if kind == "infrastructure":
        return "broken"
    result = "fail" if outcome == "failed" else worst(counted(verdicts, require))
    return "unknown" if result == "pass" and outcome != "finished" else result
