"""Trials: what a right one becomes, and what is said about each of the wrong ones in tests/golden/trials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.core.spec import parse_trial
from orchestrator.core.spec.trial_draft import Override
from orchestrator.model import codec
from orchestrator.model.errors import UsageError
from orchestrator.model.trial import CheckSpec, Trial, Trigger

from .golden import FOLDER, same_as_golden

WRONG = sorted(file for file in (FOLDER / "trials").iterdir() if file.suffix in (".yml", ".json"))
HEAD = "trial: t\nworkload: train-dp\n"
CATALOGUE = plugins.discover()


def parse(text: str, *overrides: Override, path: str = "t.yml") -> Trial:
    return parse_trial.parse(text, path, CATALOGUE, overrides)


def kill(node: str, at: str | None = None) -> Override:
    body = {"node": node} | ({} if at is None else {"at": at})
    return Override(path=("faults",), content={"crash-node": body}, source=f"--fail-node {node}", append=True)


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.name)
def test_a_wrong_trial_is_told_with_place_and_reason_all_at_once(file: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse(file.read_text(), path=f"trials/{file.name}")
    same_as_golden(f"trials/{file.name}.txt", "".join(f"{problem}\n" for problem in caught.value.problems))


def test_the_built_in_trial_is_right() -> None:
    trial = parse(Path(CATALOGUE.trials["dp-ring"]).read_text())
    assert (trial.name, trial.workload, trial.world.size, trial.seed) == ("dp-ring", "train-dp", 4, 7)
    assert trial.recovery.policy == ("auto",)
    assert trial.params["lr"] == 0.003  # defaults are written down, so that a trial says all that it is


def test_a_fault_without_a_time_acts_halfway_inside_the_all_reduce() -> None:
    assert parse(HEAD, kill("2")).faults[0].at == Trigger(step=30, phase="allreduce")


def test_halfway_in_the_checkpoint_phase_is_a_step_that_writes_one() -> None:
    assert parse(HEAD + "params: {checkpoint_every: 7}", kill("2", "phase=checkpoint")).faults[0].at.step == 28


def test_the_same_fault_twice_at_one_point_is_refused() -> None:
    with pytest.raises(UsageError, match="--fail-node 2: crash-node: is planned twice on this node at the same point"):
        parse(HEAD, kill("2", "step=9"), kill("2", "step=9"))
    assert len(parse(HEAD, kill("2", "step=9"), kill("2", "step=10"), kill("1", "step=9")).faults) == 3


def test_faults_of_the_command_line_follow_those_of_the_file() -> None:
    text = HEAD + "faults: [pause-node: {node: 1, for: 500ms, at: {step: 3}}]"
    first, second = parse(text, kill("n2", "10s")).faults
    assert (first.id, first.fault, first.node, first.params) == ("f0", "pause-node", 1, {"for_s": 0.5})
    assert (second.id, second.fault, second.node, second.at.after_s) == ("f1", "crash-node", "n2", 10.0)


@pytest.mark.parametrize(
    ("at", "trigger"),
    [
        ("{step: 20, phase: backward}", Trigger(step=20, phase="backward")),
        ("'step=20,phase=backward'", Trigger(step=20, phase="backward")),
        ("10s", Trigger(after_s=10.0)),
        ("{after: 250ms}", Trigger(after_s=0.25)),
        ("{phase: rendezvous, epoch: 1}", Trigger(step=None, phase="rendezvous", epoch=1)),
        ("{on: recovery.decided, nth: 2}", Trigger(on="recovery.decided", nth=2)),
    ],
)
def test_the_ways_to_say_when(at: str, trigger: Trigger) -> None:
    assert parse(HEAD + f"faults: [crash-node: {{node: 2, at: {at}}}]").faults[0].at == trigger


def test_an_option_is_named_where_it_is_wrong() -> None:
    with pytest.raises(UsageError) as caught:
        parse(HEAD, kill("9"), Override(path=("params", "batch"), content="many", source="--batch"))
    assert list(caught.value.problems) == [
        "--batch: must be a whole number (got many)",
        "--fail-node 9: crash-node.node: the trial has nodes 0..3 (got 9)",
    ]


def test_an_option_wins_over_the_file() -> None:
    trial = parse(HEAD + "seed: 3\nworld: {nodes: 2}", Override(path=("seed",), content="5", source="--seed"))
    assert (trial.seed, trial.world.nodes) == (5, 2)


def test_the_argument_of_a_check_is_its_first_parameter() -> None:
    trial = parse(HEAD + "checks: [bit-exact, detected-within: 2s]")
    assert trial.checks == (CheckSpec(name="bit-exact"), CheckSpec(name="detected-within", params={"seconds": 2.0}))


def test_trial_json_is_the_same_trial() -> None:
    text = HEAD + "checks: [detected-within: 2s]\nfaults: [pause-node: {node: 1, for: 2s, at: 3s}]"
    trial = parse(text, kill("2"), kill("n3", "phase=init"))
    second = parse(json.dumps(codec.plain(trial)), path="runs/latest/trial.json")
    assert second == trial
    assert second.id == trial.id


def test_a_policy_may_be_a_list_as_text() -> None:
    override = Override(path=("recovery", "policy"), content="spare, restart", source="--recovery")
    assert parse(HEAD, override).recovery.policy == ("spare", "restart")


@pytest.mark.parametrize(
    ("at", "trigger"),
    [
        ("", Trigger(after_save=2, phase="backward")),
        (", at: 4s", Trigger(after_s=4.0, phase="backward")),
        (", at: {step: 4}", Trigger(step=4, phase="backward")),
        (", at: {step: 4, phase: optimizer}", Trigger(step=4, phase="optimizer")),
        (", at: after-save=2", Trigger(after_save=2, steps_later=0, phase="backward")),
        (", at: {after-save: 1+2, phase: data}", Trigger(after_save=1, steps_later=2, phase="data")),
        (", at: save", Trigger(phase="save", nth=2)),
        (", at: 'phase=save-during,nth=1'", Trigger(phase="save-during", nth=1)),
        (", at: {phase: load, epoch: 1}", Trigger(phase="load", nth=1, epoch=1)),
    ],
)
def test_a_script_is_hit_in_its_steps_and_saves(at: str, trigger: Trigger) -> None:
    text = "trial: t\nworkload: script\nparams: {file: /a.py}\n"
    assert parse(text + f"faults: [crash-node: {{node: 1{at}}}]").faults[0].at == trigger


def test_only_a_script_has_saves_that_the_watcher_sees() -> None:
    with pytest.raises(UsageError, match="is for scripts"):
        parse(HEAD + "faults: [crash-node: {node: 1, at: {after-save: 2}}]")


LAUNCHED = "trial: t\nworkload: script\nparams: {file: a.py, launcher: torchrun}\n"


def test_a_launcher_recovers_by_itself_and_its_ranks_are_held_as_those_of_scripts() -> None:
    trial = parse(LAUNCHED + "faults: [crash-node: {node: 2}]\n")
    assert trial.recovery.policy == ("theirs",)
    at = trial.faults[0].at
    assert (at.after_save, at.steps_later, at.phase, at.exact) == (2, None, "backward", True)
    assert parse(LAUNCHED + "faults: [crash-node: {node: 2, at: step=20}]\n").faults[0].at.step == 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "recovery: {policy: theirs}\n", "theirs needs a launcher that recovers"),
        (LAUNCHED.replace("torchrun", "'run {where}'"), "unknown {where}"),
    ],
)
def test_what_a_launcher_cannot_do_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("{", r"\{")):
        parse(text)


@pytest.mark.parametrize("phase", ["save", "save-during", "load"])
def test_a_training_of_ccbed_has_no_saves_of_scripts(phase: str) -> None:
    with pytest.raises(UsageError, match="has no such phase"):
        parse(HEAD + f"faults:\n  - crash-node: {{node: 1, at: {{phase: {phase}}}}}\n")


def test_a_limit_of_a_script_that_would_not_act_is_refused() -> None:
    script = "trial: t\nworkload: script\nparams: {file: a.py}\nliveness: {stalled_s: %s}\n"
    with pytest.raises(UsageError, match=r"stalled_s: of a script must be >= 30; .* params.timeout_s") as caught:
        parse(script % 5)
    assert "got 5" in caught.value.problems[0]
    assert parse(script % 45).liveness.stalled_s == 45.0
    with pytest.raises(UsageError, match="stalled_s"):
        parse(script % 10)
    recorded = json.dumps(codec.plain(parse("trial: t\nworkload: script\nparams: {file: a.py}\n")))
    assert parse(recorded, path="runs/r/trial.json").liveness.stalled_s == 10.0, "a run without a limit of its own"
    assert parse(HEAD + "liveness: {stalled_s: 5}").liveness.stalled_s == 5.0


SCRIPTED = "trial: t\nworkload: script\nparams: {file: /t.py}\n"


@pytest.mark.parametrize(
    ("text", "require", "accept"),
    [
        (SCRIPTED, "whole", ("rng",)),
        (SCRIPTED + "checks: [bit-exact]\n", "exact", ()),
        (SCRIPTED + "checks: [replay-equal]\nrequire: whole\n", "whole", ("rng",)),
        (SCRIPTED + "require: survived\naccept: none\n", "survived", ()),
        (SCRIPTED + "require: exact\n", "exact", ()),
        (SCRIPTED + "accept: [ema, rng]\n", "whole", ("rng", "ema")),
        (SCRIPTED + "accept: data-position, ema\n", "whole", ("data-position", "ema")),
        (HEAD, "exact", ()),
    ],
)
def test_a_script_must_resume_whole_and_all_else_be_exact(text: str, require: str, accept: tuple[str, ...]) -> None:
    trial = parse(text)
    assert (trial.require, trial.accept) == (require, accept)
    parsed = parse(json.dumps(codec.plain(trial)), path="trial.json")
    assert (parsed.require, parsed.accept) == (require, accept)


def test_a_recorded_trial_without_a_rung_stays_exact() -> None:
    recorded = codec.plain(parse(SCRIPTED))
    del recorded["require"], recorded["accept"]
    parsed = parse(json.dumps(recorded), path="trial.json")
    assert (parsed.require, parsed.accept) == ("exact", ())


def test_an_unknown_rung_and_an_unknown_part_are_told_at_once() -> None:
    options = [Override(path=("accept",), content="rng,momentum", source="--accept")]
    with pytest.raises(UsageError) as caught:
        parse(SCRIPTED + "require: all\n", *options)
    assert caught.value.problems == (
        "t.yml:4: require: must be survived, whole or exact (got all)",
        "--accept: unknown part; known: data-position, ema, none, rng (got momentum)",
    )


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("none,rng", "none stands alone: it demands every part (got none)"),
        ("rng,,ema", "unknown part; known: data-position, ema, none, rng (got nothing)"),
    ],
)
def test_a_part_that_cannot_be_accepted_is_told_with_the_reason(setting: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(SCRIPTED, Override(path=("accept",), content=setting, source="--accept"))
    assert caught.value.problems == (f"--accept: {reason}",)
