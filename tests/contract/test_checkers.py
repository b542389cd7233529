"""What every file of checkers/ must be, by existing: total on any history, three-valued, and honest about its end."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.documents import decoder
from orchestrator.model import codec
from orchestrator.model.event import Event
from orchestrator.model.plugin import Plugin
from orchestrator.model.run import Run
from orchestrator.model.verdict import Outcome, Verdict

from ..unit import history
from ..unit.catalogue import ALWAYS, CATALOGUE

CHECKERS = [pytest.param(plugin, id=name) for name, plugin in CATALOGUE.checkers.items()]
#: These do not look at the run but at its twin.
OF_THE_TWIN = {"baseline-clean"}

RUNS: dict[str, Callable[[], Run]] = {
    "clean": history.clean,
    "spare": history.reference,
    "restart": functools.partial(history.reference, "restart"),
    "twice": history.twice,
    "paused": history.paused,
}


def verdict(plugin: Plugin, run: Run) -> Verdict:
    """Asked directly: a checker itself never raises; nobody has to catch anything for it."""
    given: Verdict = plugin.module.check(run, plugin.module.Params())
    assert given.outcome in get_args(Outcome)
    assert given.text, "a verdict without a word"
    json.dumps(codec.plain(given))
    return given


def test_the_checkers_that_always_run() -> None:
    assert {name for name, plugin in CATALOGUE.checkers.items() if plugin.module.ALWAYS} == ALWAYS


@pytest.mark.parametrize("plugin", CHECKERS)
def test_the_docstring_begins_with_a_sentence_for_the_catalogue(plugin: Plugin) -> None:
    assert plugin.summary.endswith(".")
    assert len(plugin.summary) <= 140


@pytest.mark.parametrize("plugin", CHECKERS)
def test_params_are_a_frozen_dataclass_with_defaults(plugin: Plugin) -> None:
    params: Any = plugin.module.Params
    assert params.__dataclass_params__.frozen
    params()
    assert isinstance(plugin.module.ALWAYS, bool)
    assert isinstance(plugin.module.TWIN, bool)


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("plugin", CHECKERS)
def test_it_answers_on_every_prefix_and_passes_none_that_has_not_ended(plugin: Plugin, make: Callable[[], Run]) -> None:
    run = make()
    for length in range(len(run.history.events)):
        given = verdict(plugin, history.prefix(run, length))
        assert given.check == plugin.name
        assert given.outcome != "pass" or plugin.name in OF_THE_TWIN, f"passed after {length} events: {given.text}"


@pytest.mark.parametrize("plugin", CHECKERS)
def test_no_prefix_of_a_good_run_fails_before_its_end(plugin: Plugin) -> None:
    """What is not over is unknown: a failure is something that no later event can mend. A bundle is looked at when it is whole."""
    run = history.reference()
    if plugin.name in ("bundle-complete", "no-step-lost"):
        return
    for length in range(len(run.history.events)):
        assert verdict(plugin, history.prefix(run, length)).outcome != "fail", f"failed after {length} events"


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("plugin", CHECKERS)
def test_it_answers_without_files_twin_and_documents(plugin: Plugin, make: Callable[[], Run]) -> None:
    bare = dataclasses.replace(make(), files=history.Files(), twin=None, extras={})
    verdict(plugin, bare)
    verdict(plugin, history.prefix(bare, 0))


@pytest.mark.parametrize(
    "name",
    ["finished", "membership", "no-orphans", "bundle-complete", "resumed-newest", "same-resume-step", "bit-exact"],
)
def test_about_nothing_nothing_is_said(name: str) -> None:
    """A run that ended without having started anything proves nothing."""
    run = history.clean()
    ends = [event for event in run.history.events if event.f in ("run.begin", "run.end")]
    assert verdict(CATALOGUE.checkers[name], history.with_events(run, ends)).outcome != "pass"


@pytest.mark.parametrize("plugin", CHECKERS)
def test_it_gives_the_same_answer_twice(plugin: Plugin) -> None:
    assert verdict(plugin, history.twice()) == verdict(plugin, history.twice())


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), keep=st.floats(0.2, 1.0))
def test_none_is_shaken_by_events_in_any_order_with_holes(seed: int, keep: float) -> None:
    run, dice = history.twice(), random.Random(seed)
    events = [event for event in run.history.events if dice.random() < keep]
    dice.shuffle(events)
    for plugin in CATALOGUE.checkers.values():
        verdict(plugin, history.with_events(run, events, number=dice.random() < 0.5))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_none_is_shaken_by_values_that_make_no_sense(seed: int) -> None:
    """Values of other types than the payload's are rejected when a bundle is read, and reach no checker."""
    run, dice = history.twice(), random.Random(seed)
    events = [_spoilt(event, dice) if dice.random() < 0.2 else event for event in run.history.events]
    for plugin in CATALOGUE.checkers.values():
        verdict(plugin, history.with_events(run, events))


def _spoilt(event: Event, dice: random.Random) -> Event:
    junk: tuple[Any, ...] = (None, -1, "x", [], {}, True, 2.5, {"a": [None]})
    value = {name: dice.choice(junk) if dice.random() < 0.5 else item for name, item in event.value.items()}
    fields: dict[str, Any] = {"value": value}
    if dice.random() < 0.3:
        fields |= dice.choice([{"node": None}, {"epoch": None}, {"key": None}, {"epoch": 99}, {"node": "n9"}])
    try:
        return decoder.as_event(json.loads(json.dumps(codec.plain(dataclasses.replace(event, **fields)))))
    except decoder.DocumentError:
        return event
