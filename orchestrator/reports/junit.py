"""JUnit XML for CI systems: each check is a test case; a failed one is a failure, an unknown one an error, a skipped one skipped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping

from .. import views
from ..core.verdict import ladder, rungs
from ..model.frozen import replace
from ..model.run import Run
from ..model.trial import RUNGS
from ..model.verdict import Outcome, Verdict
from ..views import training
from .page import page_facts, page_tables

#: Characters that XML 1.0 cannot hold, even escaped.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

_RUNG_OUTCOMES: Mapping[str, Outcome] = {
    "holds": "pass", "does not hold": "fail", "unknown": "unknown", "not asked": "skipped",
}  # fmt: skip
#: The failure of a suite without verdicts: an empty suite would count as success.
MISSING = Verdict(check="verdicts", outcome="unknown", text="no verdicts: nothing was proved")


def render(run: Run) -> Mapping[str, bytes]:
    """``junit.xml`` with one suite, the trial."""
    view = training.view(run)
    root = ET.Element("testsuites")
    _suite(root, run, view, (*_ladder(run, view), *(run.verdicts or (MISSING,)), *_ending(view)))
    ET.indent(root)
    return {"junit.xml": ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"}


def _ladder(run: Run, view: views.RunView) -> Iterable[Verdict]:
    """A case for each rung of a training. One that is not required is skipped where it does not hold."""
    required = RUNGS.index(run.trial.require)
    for number, rung in enumerate(ladder.ladder(run, view)):
        outcome, word = _RUNG_OUTCOMES[rung.state], ladder.WORDS[rung.state]
        is_due = number <= required or outcome == "pass"
        text = f"{word}: {rung.text}" + (f"; fix: {rung.fix}" if rung.fix else "")
        yield Verdict(
            check=rung.name, outcome=outcome if is_due else "skipped", text=text if is_due else f"not required; {text}"
        )


def _ending(view: views.RunView) -> Iterable[Verdict]:
    """A case of its own for what no check judges, so that the suite is as red as the exit code."""
    if view.outcome == "interrupted" or view.kind == "infrastructure":
        word = "interrupted" if view.outcome == "interrupted" else "broken"
        yield Verdict(check="run", outcome="unknown", text=f"the run is {word}: {view.reason or 'no reason given'}")


def clean(text: object) -> str:
    """Characters that XML cannot hold become U+FFFD."""
    return FORBIDDEN.sub("\ufffd", str(text))


def _suite(root: ET.Element, run: Run, view: views.RunView, verdicts: tuple[Verdict, ...]) -> None:
    due = {verdict.check for verdict in (*rungs.counted(verdicts, run.trial.require), *rungs.others(verdicts))}
    verdicts = tuple(verdict if verdict.check in due else _not_required(verdict) for verdict in verdicts)
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = {"tests": len(outcomes), "failures": outcomes.count("fail"), "errors": outcomes.count("unknown")}
    counts["skipped"] = outcomes.count("skipped")
    suite = ET.SubElement(root, "testsuite", name=clean(f"ccbed.{run.trial.name}"), time=f"{view.duration_s:.3f}")
    suite.attrib.update({key: str(value) for key, value in counts.items()})
    if page_facts.started(run):
        suite.set("timestamp", page_facts.started(run).rstrip("Z"))
    properties = ET.SubElement(suite, "properties")
    collectives = views.part_of_collectives(run.history, "sections")
    figures = collectives.pairs_of(run) if collectives else ()
    for name, value in (*page_facts.run_facts(run, view), *figures, ("rerun", page_facts.rerun(run))):
        ET.SubElement(properties, "property", name=clean(name), value=clean(value))
    bad = [verdict for verdict in verdicts if verdict.outcome in ("fail", "unknown")]
    for verdict in verdicts:
        _case(suite, run, verdict, why=_why(run, view) if verdict in bad[:1] else "")
    text = ladder.headline(run, view, ladder.ladder(run, view))
    ET.SubElement(suite, "system-out").text = clean(text)


def _not_required(verdict: Verdict) -> Verdict:
    """A verdict above the rung that the trial requires, which makes no suite red."""
    is_bad = verdict.outcome in ("fail", "unknown")
    return (
        replace(verdict, outcome="skipped", text=f"not required; {verdict.outcome}: {verdict.text}")
        if is_bad
        else verdict
    )


def _why(run: Run, view: views.RunView) -> str:
    """The traceback and the end of the log of the rank that failed."""
    failed = page_facts.failed(run, view)
    if failed is None or not failed.tail:
        return ""
    head = f"the last lines of rank {failed.rank} on {failed.node}, {failed.start} ({failed.path or 'its log'}):"
    return "\n".join([*failed.traceback, "", head, *failed.tail]).strip()


def _case(suite: ET.Element, run: Run, verdict: Verdict, why: str = "") -> None:
    """``why``: what is shown beside the evidence of a failure."""
    case = ET.SubElement(
        suite, "testcase", classname=clean(f"ccbed.{run.trial.name}"), name=clean(verdict.check), time="0"
    )
    tag = {"fail": "failure", "unknown": "error"}.get(verdict.outcome)
    text = "\n".join(page_tables.proofs(run, verdict))
    if verdict.outcome == "skipped":
        ET.SubElement(case, "skipped", message=clean(verdict.text))
    elif tag:
        element = ET.SubElement(case, tag, type=verdict.outcome, message=clean(verdict.text))
        element.text = clean("\n".join(part for part in (text, why, f"run it again: {page_facts.rerun(run)}") if part))
    else:
        ET.SubElement(case, "system-out").text = clean(f"{verdict.text}\n{text}".rstrip())
