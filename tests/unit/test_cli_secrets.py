"""Secrets on the command line: placeholders in what is run and shown, and a recorded trial that lacks them."""

from __future__ import annotations

import json

import pytest

from orchestrator.core.spec import redact
from orchestrator.model import codec

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


def test_secret_arguments_reach_the_run_as_placeholders_and_the_terminal_not_at_all(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    args = ("--secret", "ACCOUNT", "--", "--token", "hunter2-abc", "--account=some.body", "--epochs", "3")
    ccbed("run", "train.py", *args)
    request = ccbed.launched[-1]
    assert {"hunter2-abc", "some.body"} == set(request.secrets.values())
    assert redact.reveal(list(request.trial.params["args"]), request.secrets) == list(args[3:])
    shown = f"{request.trial} {request.command} {request} {ccbed.out} {ccbed.err}"
    assert "hunter2-abc" not in shown
    assert "some.body" not in shown
    assert "--epochs 3" in request.command
    assert request.secret_names == ("ACCOUNT",)
    assert ccbed("run", "train.py", "--dry-run", "--json", *args) == 0
    assert "hunter2-abc" not in ccbed.out


def test_a_recorded_trial_is_not_run_with_a_placeholder(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    ccbed("run", "train.py", "--", "--token", "hunter2-abc", "--epochs", "3")
    trial = ccbed.launched.pop().trial
    (ccbed.root / "trial.json").write_text(json.dumps(codec.plain(trial)))
    assert ccbed("run", "trial.json") == 3
    assert ccbed.launched == []
    assert "params.args[1] (the value of --token) was redacted when the run was recorded; give it again" in ccbed.err
    assert "ccbed run trial.json -- --token ... --epochs 3" in ccbed.err
    ccbed("run", "trial.json", "--", "--token", "hunter2-abc", "--epochs", "3")
    second = ccbed.launched[-1]
    assert second.trial.id == trial.id
    assert redact.reveal(second.trial.params["args"][1], second.secrets) == "hunter2-abc"
    ccbed("run", "trial.json", "--", "--token", "another-one", "--epochs", "3")
    assert ccbed.launched[-1].trial.id != trial.id


def test_what_was_secret_in_a_recorded_trial_is_secret_when_it_is_run_again(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    ccbed(
        "run", "train.py", "--secret", "ACCOUNT", "--", "--account", "some.body", "--user=other.body", "--epochs", "3"
    )
    recorded = ccbed.launched.pop()
    (ccbed.root / "trial.json").write_text(json.dumps(codec.plain(recorded.trial)))
    second = ("run", "trial.json", "--", "--account", "third.body", "--user=other.body", "--epochs", "4")
    ccbed(*second)
    assert "third.body" not in f"{ccbed.launched[-1].trial} {ccbed.launched[-1].command} {ccbed.out}"
    (ccbed.root / "plan.json").write_text(json.dumps({"secret_names": ["ACCOUNT", "USER"]}))
    ccbed(*second)
    assert "other.body" not in f"{ccbed.launched[-1].trial} {ccbed.launched[-1].command} {ccbed.out}"
    assert set(ccbed.launched[-1].secret_names) == {"--account", "ACCOUNT", "USER"}


def test_the_file_of_a_trial_that_holds_a_secret_is_run_all_the_same(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    (ccbed.root / "t.yml").write_text(
        "trial: t\nworkload: script\nparams: {file: train.py, args: [--password, hunter2]}\n"
    )
    ccbed("run", "t.yml")
    assert set(ccbed.launched[-1].secrets.values()) == {"hunter2"}


def test_the_value_of_a_secret_variable_is_redacted_in_any_argument(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    monkeypatch.setenv("ACCOUNT", "hunter2-abc")
    options = ("--secret", "ACCOUNT", "--secret", "SECOND", "--env", "SECOND=some.body")
    ccbed("run", "train.py", *options, "--", "slow", "hunter2-abc", "--user", "x-some.body")
    request = ccbed.launched[-1]
    assert redact.reveal(list(request.trial.params["args"]), request.secrets) == [
        "slow", "hunter2-abc", "--user", "x-some.body",
    ]  # fmt: skip
    announced = "".join(path.read_text() for path in (ccbed.root / "state" / "announced").glob("*.json"))
    for text in (f"{request.trial} {request.command} {ccbed.out} {ccbed.err}", announced):
        assert text and "hunter2-abc" not in text and "some.body" not in text
