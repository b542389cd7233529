"""What is taken for a secret, by name, by form and by entropy; and what is not."""

from __future__ import annotations

import base64
import hashlib
import random
import time
import uuid

import pytest

from orchestrator.core.spec import redact
from orchestrator.model import redaction
from orchestrator.model.trial import Trial

RANDOM = random.Random(5)
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY9"
HEX = hashlib.sha256(b"a key").hexdigest()
SHA = hashlib.sha1(b"a commit", usedforsecurity=False).hexdigest()

SECRET_ARGUMENTS = [
    (["--token", "abc"], 1, "abc"),
    (["--password=hunter2"], 0, "hunter2"),
    (["--api-key", "k-1"], 1, "k-1"),
    (["--apiKey", "k-1"], 1, "k-1"),
    (["--wandb-key", "k-1"], 1, "k-1"),
    (["--token", "-starts-with-a-dash"], 1, "-starts-with-a-dash"),
    (["wandb.api_key=abcd"], 0, "abcd"),
    (["DB_PASSWD=abcd"], 0, "abcd"),
    (["bash", "-c", "export HF_TOKEN=abcd; python train.py --secret-key 'xyz'"], 2, "abcd"),
    (['{"lr": 0.1, "api_key": "abcd"}'], 0, "abcd"),
    (["ghp_" + "a1B2" * 9], 0, "ghp_"),
    (["--header", "Authorization: Bearer abcdefghijklmnop0123"], 1, "abcdefghijklmnop0123"),
    (["https://user:pass@example.org/data"], 0, "pass"),
    (["--password=correct horse battery"], 0, "battery"),
    (["--password=it's-me"], 0, "'s-me"),
    (["--password", "1234"], 1, "1234"),
    (["--db-pwd", "hunter2"], 1, "hunter2"),
    (["--env=HF_TOKEN=abcd"], 0, "abcd"),
    (["--override=wandb.api_key=abcd"], 0, "abcd"),
    (["--set", "lr=0.1,token=abcd"], 1, "abcd"),
    (["Server=h;User=sa;Password=abcd"], 0, "abcd"),
    (['{"db": {"password": "p q"}}'], 0, "p q"),
    (["--config={'password': 'p q'}"], 0, "p q"),
    (["bash", "-c", "export TOKEN='p q'; true"], 2, "p q"),
    (["bash", "-c", "X=1; curl -H 'Authorization: Basic dXNlcjpwYXNz'"], 2, "dXNlcjpwYXNz"),
    (["bash", "-c", "PASSWORD=abcd true; push " + AWS], 2, AWS),
    (["-H", "Authorization: Token abcd"], 1, "abcd"),
    (["--url", "https://host/data?sig=abcd&x=1"], 1, "abcd"),
    (["--arg", AWS], 1, AWS),
    ([HEX], 0, HEX),
    (["--config", HEX], 1, HEX),
]

PLAIN_ARGUMENTS = [
    ["--tokenizer", "gpt2", "--max-tokens", "4096", "--pad-token", "<pad>", "--key-dim", "64", "--sort-key", "name"],
    ["--auth", "true", "--author", "someone", "--monkey", "x", "--keep", "3", "--token-file", "/run/token"],
    ["--lr", "0.001", "--betas", "0.9,0.999", "-v", "train", "optimizer.lr=1e-3", "model=resnet50"],
    ["/data/imagenet/2012/train-00001-of-01024/shard_A7", "s3://Bucket-Name1/Path_To/Model_V2/Checkpoint-1000"],
    ["--revision", SHA, "--commit=" + SHA, "--sha256", HEX, "digest=" + HEX],
    [
        "--image",
        "registry/train@sha256:" + HEX,
        "bash",
        "-c",
        f"git checkout main; COMMIT={SHA} python train.py --lr 0.1",
    ],
    ["--run-id", str(uuid.UUID(int=RANDOM.getrandbits(128))), str(uuid.UUID(int=RANDOM.getrandbits(128)))],
    ["meta-llama/Meta-Llama-3.1-70B-Instruct", "ResNet50_ImageNet_Baseline_v2", "2026-11-22T07:50:00Z"],
    ["GPU-8f3d2c1a-0b4e-4c6d-9e8f-0123456789ab", "127.0.0.1:29500", "tcp://10.0.0.1:23456"],
]


def hidden(names: tuple[str, ...] = ()) -> redact.Redaction:
    return redact.Redaction(
        mask=lambda secret: f"<redacted:{hashlib.md5(secret.encode(), usedforsecurity=False).hexdigest()[:16]}>",
        names=names,
    )


@pytest.mark.parametrize(("arguments", "place", "secret"), SECRET_ARGUMENTS)
def test_a_secret_argument_is_replaced_and_can_be_put_back(arguments: list[str], place: int, secret: str) -> None:
    redaction_ = hidden()
    result = redaction_.arguments(arguments)
    assert secret not in " ".join(result)
    assert redact.PLACEHOLDER.search(result[place])
    assert [text for number, text in enumerate(result) if number != place] == [
        text for number, text in enumerate(arguments) if number != place
    ]
    assert redact.reveal(list(result), redaction_.secrets) == arguments


def test_long_arguments_take_no_time() -> None:
    begun = time.process_time()
    for text in ("a=" * 60_000, "a=1," * 30_000, "TOKEN='" * 15_000, '"a": {' * 20_000):
        hidden().arguments([text])
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("arguments", PLAIN_ARGUMENTS)
def test_an_argument_that_is_no_secret_stays(arguments: list[str]) -> None:
    assert list(hidden().arguments(arguments)) == arguments


def test_the_user_names_secrets_with_dashes_or_without() -> None:
    result = hidden(("LR", "--user-name")).arguments(["--lr", "0.1", "user_name=me", "--epochs", "3", "--secret", "LR"])
    assert redact.PLACEHOLDER.fullmatch(result[1])
    assert redact.PLACEHOLDER.search(result[2])
    assert result[3:] == ("--epochs", "3", "--secret", "LR")


def test_equal_secrets_have_one_placeholder_and_what_is_redacted_is_not_redacted_twice() -> None:
    redaction_ = hidden()
    once = redaction_.arguments(["--token", "abc", "--api-key=abc"])
    assert once[1] == once[2].removeprefix("--api-key=")
    assert redaction_.arguments(once) == once


def test_a_trial_keeps_its_file_and_loses_its_secrets() -> None:
    params = {"file": f"/x/{AWS}/train.py", "args": ("--token", "abc"), "exec_": ("env", "PASSWORD=abc"), "epochs": 3}
    redaction_ = hidden()
    trial = redaction_.trial(Trial(name="t", workload="script", params=params))
    assert trial.params["file"] == params["file"]
    assert "abc" not in f"{trial.params['args']} {trial.params['exec_']}"
    assert redact.reveal(dict(trial.params), redaction_.secrets) == params
    assert redact.missing_secrets(trial.params, redaction_.secrets) == ()
    assert redact.missing_secrets(trial.params) == (
        "params.args[1] (the value of --token)",
        "params.exec_[1] (the value of PASSWORD)",
    )


def test_trials_with_other_secrets_are_other_trials_and_those_with_equal_ones_are_equal() -> None:
    first, same, other = (
        hidden().trial(Trial(name="t", workload="script", params={"args": ("--token", secret)})).id
        for secret in ("a", "a", "b")
    )
    assert first == same != other


def test_a_secret_within_a_value_of_an_environment_is_hidden_and_the_rest_of_it_stays() -> None:
    given = {
        "DSN": "Server=h;User=sa;Password=abcd",
        "JSON": '{"lr":0.1,"api_key":"abcd"}',
        "FLAGS": "-O2 --key-dim=64",
    }
    expected = {
        "DSN": "Server=h;User=sa;Password=***",
        "JSON": '{"lr":0.1,"api_key":"***"}',
        "FLAGS": "-O2 --key-dim=64",
    }
    assert redaction.redacted(given) == expected


def test_values_that_are_secret_by_their_names_are_known() -> None:
    environ = {
        "HF_TOKEN": "abcdefg",
        "TOKENIZERS_PARALLELISM": "false",
        "SSH_AUTH_SOCK": "/tmp/x",
        "MINE": "x",
        "LR": "3",
    }
    assert redaction.secret_values(environ, ("mine",)) == ("abcdefg", "x")


def test_an_environment_is_redacted_by_name_form_and_entropy() -> None:
    secret = {
        "HF_TOKEN": "x", "SENTRY": AWS, "WEBHOOK": HEX, "JWT": "eyJhbGciOiJI.eyJzdWIiOiIx.abc_def",
        "MINE": "x",
    }  # fmt: skip
    plain = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/opt/Conda3/Envs/Torch2/bin", "HOME": "/h", "GIT_COMMIT": SHA,
        "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu:/usr/local/nvidia/lib64", "CCBED_INCARNATION": HEX, "RANK": "3",
        "SSH_AUTH_SOCK": "/tmp/x", "PWD": "/w",
        "CUDA_VISIBLE_DEVICES": "GPU-8f3d2c1a-0b4e-4c6d-9e8f-0123456789ab", "LS_COLORS": "rs=0:di=01;34:ln=01;36",
    }  # fmt: skip
    shown = redaction.redacted({**secret, **plain}, names=("mine",))
    assert {name for name, value in shown.items() if value == "***"} == set(secret)
    assert {name: shown[name] for name in plain} == plain


def test_entropy_meets_random_values_and_few_names() -> None:
    """The rates that the module states, with room for chance."""

    def base64s(length: int) -> list[str]:
        return [base64.b64encode(RANDOM.randbytes(length)).decode()[:length] for _ in range(400)]

    def rate(values: list[str]) -> float:
        return sum(redaction.looks_secret(value) for value in values) / len(values)

    assert rate([RANDOM.randbytes(16).hex() for _ in range(400)]) > 0.99
    assert rate([value.replace("/", "_") for value in base64s(32)]) > 0.94
    assert rate([value.replace("/", "_") for value in base64s(24)]) > 0.45
    words = ["Distributed", "Data", "Parallel", "Tensor2", "imagenet", "Train", "shards", "V3", "checkpoint", "bf16"]
    names = ["_".join(RANDOM.sample(words, 4)) for _ in range(400)] + [
        "".join(RANDOM.sample(words, 4)) for _ in range(400)
    ]
    assert rate(names) < 0.02


def test_a_line_for_display_hides_the_values_of_what_it_declares_secret() -> None:
    line = ["ccbed", "run", "train.py", "--secret", "PLAN", "--env", "PLAN=autumn-9", "--", "--plan", "autumn-9"]
    shown = "ccbed run train.py --secret PLAN --env 'PLAN=<redacted>' -- --plan '<redacted>'"
    assert redact.command_line(line) == shown
