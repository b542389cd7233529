"""A page of Markdown: the verdict, the failovers with their phases, how to run it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .. import views
from ..core.verdict import ladder, rungs
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training
from .page import node_timeline, page_facts, page_tables

#: What Markdown reads as markup within a line, and control characters.
_MARKUP = re.compile(r"[\\`*_\[\]|]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def render(run: Run) -> Mapping[str, bytes]:
    """``summary.md``, for a pull request, a mail or the summary of a CI job."""
    view = training.view(run)
    blocks = (
        _head(run, view), _why(run, view), _collectives(run), _probed(run), _failovers(run, view), _verdicts(run), _faults(view),
        _facts(run, view),
    )  # fmt: skip
    lines = [line for block in blocks for line in block]
    return {"summary.md": ("\n".join(lines).rstrip() + "\n").encode(errors="replace")}


def cell(value: object) -> str:
    """Text that keeps to its cell of a table and is no HTML and no Markdown, such as a link, an image or emphasis."""
    return (
        _MARKUP.sub(r"\\\g<0>", _CONTROL.sub(" ", str(value)))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


def code(value: object) -> str:
    return f"`{_CONTROL.sub(' ', str(value)).replace('`', chr(39))}`"


def _head(run: Run, view: views.RunView) -> Iterator[str]:
    outcome = rungs.overall(run.verdicts, view.outcome, view.kind, run.trial.require).upper()
    shown = ladder.ladder(run, view)
    yield f"# {outcome}: {cell(ladder.headline(run, view, shown))}"
    yield ""
    if shown:
        rows = [[rung.name, ladder.WORDS[rung.state], rung.text, rung.fix] for rung in shown]
        yield from table_lines(["rung", "", "by", "fix"], rows)


def _why(run: Run, view: views.RunView) -> Iterator[str]:
    """The traceback and the end of the log of the rank that failed."""
    failed = page_facts.failed(run, view)
    if failed is None:
        return
    yield from (f"## Why: rank {failed.rank} on {cell(failed.node)}, {failed.start}", "")
    for lines in (failed.traceback, failed.tail):
        yield from (*_block(lines), "") if lines else ()
    if failed.path:
        yield from (f"{'The end of' if failed.tail else 'It wrote nothing into'} {code(failed.path)}.", "")


def _block(lines: Sequence[str]) -> Iterator[str]:
    """Lines in a fence that is longer than any in them."""
    runs = re.findall("`+", "\n".join(lines))
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in runs), 0)
    yield f"{fence}text"
    yield from (_CONTROL.sub(" ", line) for line in lines)
    yield fence


def _collectives(run: Run) -> Iterable[str]:
    collectives = views.part_of_collectives(run.history, "sections")
    return collectives.markdown(run) if collectives else ()


def _probed(run: Run) -> Iterator[str]:
    head, rows = page_tables.probed(run)
    absent = page_tables.not_probed(run)
    if rows or absent:
        yield from ("## Figures of the nodes", "")
        yield from table_lines(head, rows) if rows else ()
        yield from (f"- not measured: {cell(text)}" for text in absent)
        yield from ("",) if absent else ()


def _failovers(run: Run, view: views.RunView) -> Iterator[str]:
    figures = page_tables.recoveries(training.recovery_figures(run, view.failovers))
    for row, recovery, known in zip(page_tables.failovers(run.trial, view), view.failovers, figures, strict=True):
        yield f"## Failover {row['number']}: {cell(row['title'])}"
        yield ""
        if recovery.phases:
            head = [views.STAGES[name] for name, _ in recovery.phases]
            yield from table_lines(head, [[node_timeline.milliseconds(s) for _, s in recovery.phases]])
        yield f"Detected: {cell(row['detected'])}; recovered: {cell(row['policy'])};"
        yield (
            f"resumed from {cell(row['resumed'])}; steps redone: {cell(row['redone'])}, after {cell(row['caught_up'])}."
        )
        yield ""
        if known:
            yield from table_lines([name for name, _ in known], [[text for _, text in known]])


def _verdicts(run: Run) -> Iterator[str]:
    yield "## Verdicts"
    yield ""
    rows = [
        [verdict.outcome, verdict.check, verdict.text, _evidence(run, verdict)] for verdict in page_tables.ranked(run)
    ]
    if not rows:
        yield from ("No verdicts yet.", "")
        return
    yield from table_lines(["outcome", "check", "finding", "evidence"], rows)


def _evidence(run: Run, verdict: Verdict) -> str:
    """Return what fits a cell of a table; the page and verdicts.json have the rest. Of failures more."""
    text, limit = "; ".join(page_tables.proofs(run, verdict)), 160 if verdict.outcome in ("pass", "skipped") else 600
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _faults(view: views.RunView) -> Iterator[str]:
    rows = [
        [f"{fault['fault']} ({fault['id']})", fault["target"], fault["exact"], *(_stage(t) for _, t in fault["stages"])]
        for fault in page_tables.faults(view.faults)
    ]
    if rows:
        yield from ("## Faults", "")
        yield from table_lines(["fault", "target", "trigger", *page_tables.STAGES.values()], rows)


def _stage(t: float | None) -> str:
    return "no" if t is None else f"{t:.3f} s"


def _facts(run: Run, view: views.RunView) -> Iterator[str]:
    yield "## What ran"
    yield ""
    pairs = [*page_facts.trial(run), *page_facts.run_facts(run, view), *page_facts.fingerprint(run)]
    yield from table_lines(["fact", "value"], [[key.strip(), value] for key, value in pairs])
    yield f"Run it again: {code(page_facts.rerun(run))}  "
    yield f"Check it again: {code(page_facts.recheck(run))}"


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(map(cell, head)) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"
    yield ""
