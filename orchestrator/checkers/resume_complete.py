"""A user's job resumed with all of its state: weights, buffers, optimizer, schedule, random state and position in the data."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training
from ..views.training import completeness


@training.by_rank
def check(run: Run, params: Params) -> Verdict:
    """A row for each part, by the state of the same moment of the job before and after the failure, else by that of a twin."""
    lines = training.lineage_of(run)
    failures, doubts = (
        list[views.Finding](),
        [*training.job_doubts(run, lines), *training.nothing_to_resume(run, lines)],
    )
    rows: dict[str, dict[str, dict[str, str]]] = {}
    for resumption in lines.resumptions:
        if resumption.is_fresh:
            doubts.append(views.finding(f"{resumption.attempt.name}: began at step 0, no state was resumed"))
            continue
        parts = completeness.worst(completeness.rows(lines, resumption, run.twin))
        parts = completeness.comparable(parts, training.unrepeated(run.twin, training.kept_facts(lines)))
        if run.twin is not None and "RNG" in parts:
            facts, is_drawn_equally = training.kept_facts(lines), parts["RNG"].result in ("pass", "not applicable")
            rounds = is_drawn_equally and training.repeats(run.twin, facts)
            same_size = not lines.size_changes
            saved = training.saved_state.row(facts, run.twin, rounds=rounds, same_size=same_size)
            if _has_kept_steps(resumption, lines):
                parts = training.saved_state.with_copies(parts, saved)
            if resumption is lines.resumptions[-1]:
                parts |= {saved.part: saved} if saved else {}
                parts = training.saved_state.with_reference(parts, lines, facts, run.twin)
        failures += _findings(parts, "fail")
        doubts += _findings(parts, "unknown")
        if parts:
            rows[resumption.attempt.name] = {p: {"result": row.result, "text": row.text} for p, row in parts.items()}
    return views.conclude("resume-complete", _text(rows), failures=failures, doubts=doubts, evidence={"rows": rows})


def _has_kept_steps(resumption: training.Resumption, lines: training.Lineage) -> bool:
    """Whether later attempts resumed from a step that this one made."""
    later = [base for index, base in lines.bases.items() if index > resumption.attempt.index]
    return resumption.step is not None and all(base > resumption.step for base in later)


def _findings(parts: dict[str, completeness.Row], result: str) -> Iterator[views.Finding]:
    for part, row in parts.items():
        if row.result == result:
            yield views.finding(f"{row.who}: {part}: {row.text or result}")


def _text(rows: dict[str, dict[str, dict[str, str]]]) -> str:
    if not rows:
        return "no failover, nothing was resumed"
    names = dict.fromkeys(part for row in rows.values() for part in row)
    parts = {part: [row[part]["result"] for row in rows.values() if part in row] for part in names}
    absent = [part for part, results in parts.items() if set(results) == {"not applicable"}]
    reasons = {part: next(row[part]["text"] for row in rows.values() if part in row) for part in absent}
    groups: dict[str, list[str]] = {}
    for part, reason in reasons.items():
        groups.setdefault(reason if reason.startswith("not comparable") else "not applicable", []).append(part)
    text = f"{', '.join(part for part in parts if part not in absent)} as before"
    return "; ".join([text, *(f"{reason}: {', '.join(names)}" for reason, names in groups.items())])
