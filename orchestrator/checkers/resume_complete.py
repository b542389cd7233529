"""A user's job resumed with all of its state: weights, buffers, optimizer, schedule, random state and position in the data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training
from ..views.training import completeness, doubts, saved_state

_Rows = dict[str, completeness.Row]


@training.by_rank
def check(run: Run, params: Params) -> Verdict:
    """A row for each part, by the state of the same moment of the job before and after the failure, else by that of a twin.

    A part whose loss the trial accepts is no failure: the verdict says that it was lost.
    """
    lines = training.lineage_of(run)
    may_lose = completeness.may_lose(run.trial.accept)
    failures, unknown = (
        list[views.Finding](),
        [*training.job_doubts(run, lines), *training.nothing_to_resume(run, lines)],
    )
    rows: dict[str, dict[str, dict[str, str]]] = {}
    accepted: dict[str, str] = {}
    for resumption in lines.resumptions:
        if resumption.is_fresh:
            unknown.append(
                views.finding(
                    f"{resumption.attempt.name}: began at step 0, no state was resumed: a fault after a save shows more"
                )
            )
            continue
        of_ranks = completeness.rows(lines, resumption, run.twin)
        parts = _parts(run, lines, resumption, completeness.worst(of_ranks), may_lose)
        lost = {part: row for part, row in parts.items() if part in may_lose and row.result in ("fail", "unknown")}
        accepted |= {part: _whose(of_ranks, row) for part, row in lost.items()}
        rest = {part: row for part, row in parts.items() if part not in lost}
        failures += _findings(rest, "fail")
        unknown += _findings(rest, "unknown")
        if parts:
            rows[resumption.attempt.key] = {p: {"result": row.result, "text": row.text} for p, row in parts.items()}
    evidence = {"rows": rows, **({"accepted": accepted} if accepted else {})}
    text = _text(rows, accepted)
    return views.conclude("resume-complete", text, failures=failures, doubts=unknown, evidence=evidence)


def _parts(
    run: Run, lines: training.Lineage, resumption: training.Resumption, parts: _Rows, may_lose: Collection[str]
) -> _Rows:
    """The rows of a resumption, with what the reference runs show."""
    accepts_random_states = "rng" in run.trial.accept
    if accepts_random_states:
        parts = completeness.drawn_data(parts, training.replays(lines, resumption.attempt))
    facts = training.kept_facts(lines)
    parts = completeness.comparable(parts, training.unrepeated(run.twin, facts))
    if run.twin is None or "RNG" not in parts:
        return parts
    is_drawn_equally = parts["RNG"].result in ("pass", "not applicable")
    is_fed_equally = saved_state.DATA not in may_lose or parts[saved_state.DATA].result != "fail"
    rounds = is_drawn_equally and is_fed_equally and training.repeats(run.twin, facts)
    saved = saved_state.row(facts, run.twin, rounds=rounds, same_size=not lines.size_changes)
    if _has_kept_steps(resumption, lines):
        parts = saved_state.with_copies(parts, saved)
    if resumption is not lines.resumptions[-1]:
        return parts
    copies = completeness.saved_copies(resumption) if "ema" in run.trial.accept else ()
    rest = saved_state.row(facts, run.twin, rounds=rounds, same_size=not lines.size_changes, without=copies)
    parts = saved_state.with_lost_copies(parts, saved, rest)
    own = parts.get("data position")
    parts = saved_state.with_reference(parts, lines, facts, run.twin)
    if not accepts_random_states or parts["RNG"].result != "fail":
        return parts
    # the restarted reference had its random states: where its data are right, that shows nothing of data that this run draws from them
    parts |= {own.part: saved_state.not_drawn(own, lines, facts, run.twin)} if own else {}
    return saved_state.with_hidden(parts, lines, facts, run.twin, may_lose)


def _whose(rows: Iterable[completeness.Row], lost: completeness.Row) -> str:
    """The ranks that lost a part: ``not restored on ranks 1-3``; without them where only the comparison of attempts shows it."""
    verb = "not restored" if lost.result == "fail" else "not known"
    ranks = [
        row.who.partition(": ")[2] or row.who for row in rows if (row.part, row.result) == (lost.part, lost.result)
    ]
    names = [*doubts.fold_ranks(f"{rank} {verb}" for rank in ranks)]
    return f"{verb} on {', '.join(name.removesuffix(f' {verb}') for name in names)}" if names else verb


def _has_kept_steps(resumption: training.Resumption, lines: training.Lineage) -> bool:
    """Return whether later attempts resumed from a step that this one made."""
    later = [base for index, base in lines.bases.items() if index > resumption.attempt.index]
    return resumption.step is not None and all(base > resumption.step for base in later)


def _findings(parts: _Rows, result: str) -> Iterator[views.Finding]:
    for part, row in parts.items():
        if row.result == result:
            yield views.finding(f"{row.who}: {part}: {row.text or result}")


def _text(rows: dict[str, dict[str, dict[str, str]]], accepted: Mapping[str, str]) -> str:
    if not rows:
        return "no failover, nothing was resumed"
    names = dict.fromkeys(part for row in rows.values() for part in row)
    parts = {part: [row[part]["result"] for row in rows.values() if part in row] for part in names}
    absent = [part for part, results in parts.items() if set(results) == {"not applicable"}]
    reasons = {part: next(row[part]["text"] for row in rows.values() if part in row) for part in absent}
    groups: dict[str, list[str]] = {}
    for part, reason in reasons.items():
        groups.setdefault(reason if reason.startswith("not comparable") else "not applicable", []).append(part)
    text = f"{', '.join(part for part in parts if part not in absent and part not in accepted)} as before"
    lost = [f"accepted: {part} ({ranks})" for part, ranks in accepted.items()]
    return "; ".join([text, *lost, *(f"{reason}: {', '.join(names)}" for reason, names in groups.items())])
