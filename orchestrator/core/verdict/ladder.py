"""The ladder of a judged training in words: its three rungs with what shows them, and one headline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ... import views
from ...model.frozen import replace
from ...model.run import Run
from ...model.trial import RUNGS, SCRIPT
from ...model.verdict import Outcome, Rung, State, Verdict
from ...views import training
from . import fixes, rungs, sentence

#: Part of the state -> its name for people; the worst loss first.
PARTS: Mapping[str, str] = {
    "weights": "weights",
    "buffers": "buffers",
    "optimizer": "optimizer",
    "data position": "data position",
    "accumulated gradients": "accumulated gradients",
    "copies of the model": "copies (EMA)",
    "scaler": "gradient scaler",
    "scheduler": "scheduler",
    "learning rate": "learning rate",
    "saved state": "saved state",
    "other state": "own state",
    "RNG": "random states",
}
_NOT_BACK = "the job did not come back"
_AND_MORE = re.compile(r" \(and \d+ more\)$")
#: What a rung answers.
_DOUBTS = {
    "survived": "Whether your job came back as it should",
    "resumed whole": "Whether your job resumed whole",
    "exact": "Whether your job computed what an undisturbed one does",
}
_NO_REFERENCE = "no reference run: --reference"
#: Where a rung does not hold, and no part of the state says why.
_INSTEAD = {"survived": "not as it should", "resumed whole": "not whole", "exact": "computed something else"}
_STATES: Mapping[str, State] = {"pass": "holds", "fail": "does not hold", "unknown": "unknown", "skipped": "not asked"}
#: State -> its word in the lines of the ladder.
WORDS: Mapping[State, str] = {"holds": "yes", "does not hold": "no", "unknown": "unknown", "not asked": "not asked"}


def is_shown(run: Run) -> bool:
    """Return whether the run is that of a training, which has the ladder."""
    return run.trial.workload == SCRIPT or bool(rungs.OF_TRAININGS & {verdict.check for verdict in run.verdicts})


def ladder(run: Run, view: views.RunView) -> tuple[Rung, ...]:
    """The three rungs of a judged training; none of another run."""
    if not is_shown(run):
        return ()
    shown = [_survived(run, view), _whole(run, view), _exact(run.verdicts)]
    if shown[0].state == "does not hold" and view.outcome != "finished":
        shown[1:] = [replace(rung, text=_NOT_BACK) if rung.state == "unknown" else rung for rung in shown[1:]]
    return tuple(replace(rung, text=rung.text.replace("RNG", PARTS["RNG"])) for rung in shown)


def headline(run: Run, view: views.RunView, shown: Sequence[Rung]) -> str:
    """One sentence on how the run ended; of a run that is no training, or ended otherwise, that of ``sentence``."""
    outcome = rungs.overall(run.verdicts, view.outcome, view.kind, run.trial.require)
    state = {"pass": "holds", "fail": "does not hold", "unknown": "unknown"}.get(outcome)
    if not shown or state is None or not (view.outcome == "finished" or shown[0].state == "does not hold"):
        return sentence.sentence(run.trial, view, run.verdicts)
    if view.outcome != "finished":
        return f"Your job {'did not come back' if view.failovers else 'failed'}: {shown[0].text}."
    if state == "holds":
        return _passed(run, view, shown)
    required = shown[: RUNGS.index(run.trial.require) + 1]
    rung = next(iter(sorted((rung for rung in required if rung.state == state), key=lambda rung: not rung.lost)), None)
    if rung is None:
        bad = next((v for v in rungs.others(run.verdicts) if v.outcome == outcome), None)
        return (
            f"{bad.check} {'fails' if outcome == 'fail' else 'is unknown'}: {bad.text}."
            if bad
            else "Nothing was proved."
        )
    return _known(view, rung) if state == "does not hold" else f"{_DOUBTS[rung.name]} is not known: {rung.text}."


def _passed(run: Run, view: views.RunView, shown: Sequence[Rung]) -> str:
    if not view.failovers:
        text = sentence.story(run.trial, view)
        return f"{text[:1].upper()}{text[1:]}."
    first = view.failovers[0]
    what = (
        sentence.loss(run.trial, view, first)
        if len(view.failovers) == 1
        else sentence.count(len(view.failovers), "loss")
    )
    accepted = [PARTS.get(part, part) for part in shown[1].accepted]
    but = f"; lost, and accepted: {', '.join(accepted)}" if accepted else ""
    missed = [rung.name for rung in shown if rung.state == "does not hold"]
    but += f"; not required: {sentence.series(missed)}" if missed else ""
    return f"Your job survived: {what}, {sentence.returned(view, first)}{but}."


def _known(view: views.RunView, rung: Rung) -> str:
    began = "Your job came back" if view.failovers else "Your job finished"
    lost = [PARTS.get(part, part) for part in rung.lost]
    if lost:
        return f"{began}, but without its {sentence.series(lost)}."
    return f"{began}, but {_INSTEAD[rung.name]}: {rung.text}."


def _survived(run: Run, view: views.RunView) -> Rung:
    verdicts = _of("survived", run.verdicts)
    state = _state(verdicts)
    if state == "holds" and view.outcome != "finished":
        state = "unknown" if view.outcome in ("running", "interrupted") else "does not hold"
    text = _finding(verdicts, state) if state in ("does not hold", "unknown") else ""
    is_newest = _outcomes(verdicts).get("resumed-newest") == "pass"
    text = (text or sentence.story(run.trial, view, is_newest=is_newest)).removeprefix("the run failed: ")
    fix = fixes.TORN * any(verdict.evidence.get("tried") for verdict in verdicts)
    return Rung(name=rungs.NAMES["survived"], state=state, text=text, fix=fix, checks=_outcomes(verdicts))


def _whole(run: Run, view: views.RunView) -> Rung:
    verdicts = _of("whole", run.verdicts)
    known = {verdict.check: verdict for verdict in verdicts}
    name, complete = rungs.NAMES["whole"], known.get("resume-complete")
    is_resumed = view.failovers or (complete and complete.evidence.get("rows"))
    if not is_resumed and _state(verdicts) in ("holds", "not asked"):
        return Rung(name=name, state="not asked", text="nothing was resumed", checks=_outcomes(verdicts))
    if complete is None:
        return _whole_by_bits(run, verdicts)
    lost, doubtful = (_sorted(_not_as_before(complete, result)) for result in ("fail", "unknown"))
    accepted = _sorted(complete.evidence.get("accepted", {}))
    later = next((v.evidence["accepted_later"] for v in run.verdicts if v.evidence.get("accepted_later")), "")
    accepted |= {"RNG": later} if later and "RNG" not in accepted else {}
    state, doubt = _state(verdicts), rungs.unexplained(run.verdicts)
    bad = {"does not hold": lost, "unknown": doubtful}.get(state, {})
    if state == "holds" and doubt:
        is_known = doubt.startswith(training.saved_state.ASIDE)
        state, text = "unknown", doubt if is_known else f"no part explains a difference: {doubt}"
    elif bad and (bad is lost or any(reason in complete.text for reason in bad.values())):
        text = " · ".join(f"{PARTS.get(part, part)}: {reason}" for part, reason in bad.items())
    else:
        text = _finding(verdicts, state) or _shortened(complete.text.partition("; ")[0])
    note = ", ".join(f"{PARTS.get(part, part)} ({how})" for part, how in accepted.items())
    text += f"; accepted: {note}" * bool(note)
    is_drawn = training.completeness.DRAWN in lost.get("data position", "")
    missed = [*lost, *(part for part, how in accepted.items() if not how.startswith("not known"))]
    fix = fixes.of(run, "RNG" if is_drawn else next(iter(missed), ""))
    fix = fix or fixes.to_know(run) * (bad is doubtful and bool(doubtful))
    return Rung(name=name, state=state, text=text, fix=fix, checks=_outcomes(verdicts), lost=lost, accepted=accepted)


def _whole_by_bits(run: Run, verdicts: Sequence[Verdict]) -> Rung:
    """Judge a built-in training: its final state, or each step that was done again, shows what it resumed with."""
    proofs = [v for v in run.verdicts if v.check in ("bit-exact", "replay-equal")]
    differing = [verdict for verdict in verdicts if verdict.outcome == "fail"]
    equal = [verdict for verdict in proofs if verdict.outcome == "pass"]
    compared = [verdict for verdict in proofs if verdict.outcome != "skipped"]
    state: State = "does not hold" if differing else "holds" if equal and len(equal) == len(compared) else "unknown"
    text = next(
        (verdict.text for verdict in (*differing, *(equal if state == "holds" else proofs)) if verdict.text),
        "no check shows it",
    )
    return Rung(
        name=rungs.NAMES["whole"],
        state=state if proofs else "not asked",
        text=text,
        checks=_outcomes((*verdicts, *proofs)),
    )


def _exact(verdicts: Sequence[Verdict]) -> Rung:
    own = _of("exact", verdicts)
    state = _state(own)
    compared = [verdict.text for verdict in own if verdict.outcome != "skipped"]
    why = next((verdict.text for verdict in own if verdict.check == "bit-exact"), _NO_REFERENCE)
    if state == "holds" and {*compared} == {training.NONE_TWICE}:  # nothing was compared
        return Rung(
            name=rungs.NAMES["exact"],
            state="not asked",
            text=f"{training.NONE_TWICE}, and {why.removeprefix('not checked: ')}",
            checks=_outcomes(own),
        )
    text = _finding(own, state) or next(reversed(compared or [verdict.text for verdict in own]), _NO_REFERENCE)
    return Rung(name=rungs.NAMES["exact"], state=state, text=text, checks=_outcomes(own))


def _of(rung: str, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    known = {verdict.check: verdict for verdict in verdicts}
    return tuple(known[name] for name in rungs.CHECKS[rung] if name in known)


def _state(verdicts: Sequence[Verdict]) -> State:
    order = ("fail", "unknown", "pass", "skipped")
    return _STATES[min((verdict.outcome for verdict in verdicts), key=order.index, default="skipped")]


def _finding(verdicts: Iterable[Verdict], state: State) -> str:
    """The first finding of each verdict that makes a rung no or unknown, each once; that of a load that failed first."""
    bad = [
        verdict for verdict in verdicts if verdict.outcome in ("fail", "unknown") and _STATES[verdict.outcome] == state
    ]
    bad.sort(key=lambda verdict: not verdict.evidence.get("tried"))
    return "; ".join(dict.fromkeys(_AND_MORE.sub("", verdict.text) for verdict in bad))


def _shortened(text: str) -> str:
    """A list of parts that are as before, of which the first two are named where there are more than three."""
    names = text.split(", ")
    return f"{names[0]}, {names[1]} and {len(names) - 2} more parts as before" if len(names) > 3 else text


def _not_as_before(complete: Verdict, result: str) -> dict[str, str]:
    """Part -> reason of what was not resumed, or is not known to be, by the rows of all attempts."""
    rows = complete.evidence.get("rows", {}).values()
    accepted = complete.evidence.get("accepted", {})
    return {
        part: row["text"] or "not as before"
        for attempt in rows
        for part, row in attempt.items()
        if row["result"] == result and part not in accepted
    }


def _sorted(parts: Mapping[str, str]) -> dict[str, str]:
    places = {part: number for number, part in enumerate(PARTS)}
    return dict(sorted(parts.items(), key=lambda item: places.get(item[0], len(places))))


def _outcomes(verdicts: Iterable[Verdict]) -> dict[str, Outcome]:
    return {verdict.check: verdict.outcome for verdict in verdicts}
