"""What every file of reports/ must do, by existing; and wrong reports, each of which breaks a law."""

from __future__ import annotations

import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.model.plugin import Plugin
from orchestrator.model.run import Run

from ..unit.catalogue import CATALOGUE
from . import report_contract as contract
from .report_contract import LAWS, Render

REPORTS = [pytest.param(plugin, id=name) for name, plugin in CATALOGUE.reports.items()]
_NUMBERS = itertools.count()


@pytest.mark.parametrize("plugin", REPORTS)
def test_the_docstring_begins_with_a_sentence_for_the_catalogue(plugin: Plugin) -> None:
    assert plugin.summary
    assert len(plugin.summary) <= 140


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("plugin", REPORTS)
def test_every_report(plugin: Plugin, law: Callable[[Render], None]) -> None:
    law(plugin.module.render)


def test_no_two_reports_write_the_same_file() -> None:
    runs = (contract.whole(), contract.collective())
    rendered = [{path for run in runs for path in plugin.module.render(run)} for plugin in CATALOGUE.reports.values()]
    assert [path for path, count in Counter(itertools.chain(*rendered)).items() if count > 1] == []


# --- negative controls --------------------------------------------------------------------------------------------------


def _page(text: str) -> dict[str, bytes]:
    return {"page.html": f"<html><body>{text}</body></html>".encode(errors="replace")}


def _saves(run: Run) -> Mapping[str, bytes]:
    Path(os.devnull).open("w").close()
    return _page("saved")


def _connects(run: Run) -> Mapping[str, bytes]:
    with socket.socket() as connection:
        connection.connect_ex(("127.0.0.1", 9))
    return _page("connected")


def _first_event(run: Run) -> Mapping[str, bytes]:
    return _page(run.history.events[0].f)


def _end(run: Run) -> Mapping[str, bytes]:
    return _page(next(event for event in run.history.events if event.f == "run.end" or event.seq == 10**9).f)


def _only_finished(run: Run) -> Mapping[str, bytes]:
    reasons = [event.value["reason"] for event in run.history.events if event.f == "run.end"]
    assert not any("started again" in reason for reason in reasons)
    return _page("finished")


#: name of the law -> reports that break it.
WRONG: Mapping[str, tuple[Render, ...]] = {
    "it_names_its_files_below_one_directory": (
        lambda run: {"/tmp/page.html": b"x"},
        lambda run: {"../page.html": b"x"},
        lambda run: {"a//b.html": b"x"},
        lambda run: {f"{contract.HOSTILE}.html": b"x"},
        lambda run: {"page": b"x"},
    ),
    "it_returns_bytes_and_writes_nothing_itself": (
        _saves, _connects, lambda run: {"page.html": "text"}, lambda run: {"page.html": b""},  # type: ignore[dict-item]
    ),
    "it_is_the_same_twice": (lambda run: _page(str(next(_NUMBERS))), lambda run: _page(str(id(run)))),
    "it_needs_nothing_from_outside": (
        lambda run: _page('<img src="https://cdn/x.png">'),
        lambda run: _page('<link href="//cdn/x.css">'),
        lambda run: {"page.md": b"![x](https://cdn/x.png)"},
        lambda run: {"page.css": b"@import 'x.css'"},
    ),
    "it_survives_a_run_that_has_not_ended": (_end, _first_event),
    "it_survives_a_failed_run": (_only_finished,),
    "it_survives_a_minimal_run": (_first_event, lambda run: _page(run.extras["bundle.json"]["run"])),
    "it_survives_hostile_text": (
        lambda run: _page("".join(verdict.text for verdict in run.verdicts)),
        lambda run: _page(f'<p title="{run.trial.name}">x</p>'),
        lambda run: _page("<script>let a = 1;</script>"),
        lambda run: {"page.md": f"```text\n{run.files.log('n0', 0, 0)}\n```\n".encode(errors="replace")},
        lambda run: {"page.xml": f"<x>{run.trial.name}</x>".encode(errors="replace")},
        lambda run: {"page.csv": f"a,b\n{run.trial.name},1\n".encode(errors="replace")},
        lambda run: {"page.md": f"# {run.trial.name}\n".encode(errors="replace")},
        lambda run: {"page.prom": f'x{{trial="{run.trial.name}"}} 1\n'.encode(errors="replace")},
        lambda run: {"page.json": f'{{"name": "{run.trial.name}"}}'.encode(errors="replace")},
        lambda run: {"page.txt": run.trial.name.encode()},
    ),
    "it_shows_the_verdict_of_the_bundle": (
        lambda run: _page(" ".join(verdict.check for verdict in run.verdicts) or "none"),
        lambda run: _page(" ".join(f"{verdict.check} {verdict.outcome == 'pass'}" for verdict in run.verdicts)),
        lambda run: _page("finished: pass, bit-exact: pass"),
    ),
}  # fmt: skip


def test_there_is_a_wrong_report_for_each_law() -> None:
    assert list(WRONG) == [law.__name__ for law in LAWS]


@pytest.mark.parametrize(
    ("law", "render"),
    [
        pytest.param(law, render, id=f"{law.__name__}-{number}")
        for law in LAWS
        for number, render in enumerate(WRONG[law.__name__])
    ],
)
def test_a_wrong_report_breaks_the_law(law: Callable[[Render], None], render: Render) -> None:
    with pytest.raises((AssertionError, LookupError, StopIteration, ValueError, SyntaxError)):
        law(render)
