"""Only nodes that a trial may use have to share the directory for checkpoints; who cannot take part is left out, and named."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.cli.render.run_lines import RunLines
from orchestrator.model.errors import UsageError
from orchestrator.model.event import Clock, Event, Source
from orchestrator.model.plan import Gap

from . import beds
from .test_plan import planned, trial


def between(entry: str, other: str | None = None) -> Gap:
    return Gap(
        nodes=frozenset({entry}),
        other_nodes=frozenset({other}) if other else None,
        reason=f"{entry} does not see {other}",
    )


@pytest.mark.parametrize("policy", ["spare", "restart", "[spare, restart]"])
@pytest.mark.parametrize("gap", [between("n3", "n0"), between("n1")], ids=["two of its nodes", "one node with nobody"])
def test_a_policy_that_needs_the_directory_is_refused_with_the_reason(policy: str, gap: Gap) -> None:
    requested = trial(f"recovery: {{policy: {policy}}}")
    wanted = r"needs a directory that the trial's nodes \(n0 n1 n2 n3\) share; .* is not shared: "
    with pytest.raises(UsageError, match=f"{wanted}{gap.reason}: mount the same file system there on their hosts"):
        planned(requested, gaps=[gap])


def test_without_the_directory_a_trial_without_faults_runs_and_recovers_from_nothing() -> None:
    gaps = [between("n3", "n0")]
    assert planned(trial(), gaps=gaps).policy == ("none",)
    with pytest.raises(UsageError, match="recovery auto needs a directory"):
        planned(trial(fail="2"), gaps=gaps)


@pytest.mark.parametrize("policy", ["auto", "spare", "restart", "[spare, restart]"])
def test_what_hosts_have_there_on_which_no_node_of_the_trial_is_does_not_matter(policy: str) -> None:
    """n0 and n1 share it with the spare n4; n2 and n3 with nobody, and not with each other."""
    gaps = [between("n2"), between("n3", "n2"), between("n3", "n0"), between("n1", "n3"), between("n4", "n3")]
    requested = trial(f"world: {{nodes: 2}}\nrecovery: {{policy: {policy}}}", fail="1")
    planned_run = planned(requested, gaps=gaps)
    assert (planned_run.slots, planned_run.spares, planned_run.left_out) == (("n0", "n1"), ("n4",), {})
    assert planned_run.policy == (("spare", "restart") if policy == "auto" else requested.recovery.policy)


def test_a_spare_that_does_not_share_it_is_left_out_and_named() -> None:
    gaps = [between("n4", "n1")]
    planned_run = planned(trial("recovery: {policy: auto}", fail="2"), gaps=gaps)
    assert (planned_run.policy, planned_run.spares, planned_run.left_out) == (
        ("restart",),
        (),
        {"n4": "n4 does not see n1"},
    )
    both = planned(trial("recovery: {policy: [spare, restart]}", fail="2"), gaps=gaps)
    assert (both.policy, both.spares) == (("spare", "restart"), ())
    with pytest.raises(
        UsageError, match=r"needs a ready spare that shares .*; none does: n4: n4 does not see n1: mount"
    ):
        planned(trial("recovery: {policy: spare}", fail="2"), gaps=gaps)


def test_spares_that_do_not_share_it_with_each_other_are_not_both_kept() -> None:
    of = beds.local()
    more = dataclasses.replace(of, nodes=(*of.nodes, dataclasses.replace(of.nodes[-1], name="n5")))
    planned_run = planned(trial("recovery: {policy: auto}", fail="2"), more, gaps=[between("n5", "n4")])
    assert (planned_run.spares, planned_run.left_out) == (("n4",), {"n5": "n5 does not see n4"})


def test_no_recovery_needs_no_directory_and_keeps_its_spares() -> None:
    planned_run = planned(trial("recovery: {policy: none}", fail="2"), gaps=[between("n4"), between("n0", "n1")])
    assert (planned_run.policy, planned_run.spares) == (("none",), ("n4",))


def test_what_is_left_out_is_told_when_the_run_begins() -> None:
    value = {"nodes": {}, "left_out": {"n4": "h2 does not see what h0 writes there"}}
    at, source = Clock(boot="b", mono=0.0, wall=0.0), Source(writer="ctl", n=1)
    lines = RunLines(trial=trial()).feed(Event(type="note", f="run.begin", at=at, source=source, value=value))
    assert [(line.label, line.text) for line in lines] == [
        ("left out", "spare n4: h2 does not see what h0 writes there")
    ]
