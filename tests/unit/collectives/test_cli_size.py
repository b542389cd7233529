"""``ccbed size``: what it prints, writes and refuses."""

from __future__ import annotations

import gzip
import io
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal

from ..golden import same_as_golden

SEED = "--model mnist-mlp --batch 8192 --dataset 60000 --gpus 4"


@dataclass
class Desk:
    root: Path
    out: str = ""
    err: str = ""

    def __call__(self, line: str) -> int:
        out, err = io.StringIO(), io.StringIO()
        session = Session(state=self.root / "state", terminal=terminal.Terminal(out=out, err=err))
        code = main.run(["size", *shlex.split(line)], session)
        self.out, self.err = out.getvalue(), err.getvalue()
        return code

    def json(self, line: str) -> Any:
        assert self(f"{line} --json") == 0, self.err
        return json.loads(self.out)

    def items(self, line: str) -> list[dict[str, Any]]:
        assert self(f"{line} --emit trial.yml --force") == 0, self.err
        document = yaml.safe_load((self.root / "trial.yml").read_text())
        assert (document["workload"], document["trial"]) == ("emulate", "trial")
        items: list[dict[str, Any]] = document["params"]["items"]
        assert all(
            set(item) - {"groups", "gap_from"} == {"operation", "bytes", "trials", "gap_ms", "algorithm", "dtype"}
            for item in items
        )
        return items


@pytest.fixture
def size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(root=tmp_path)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("seed-dp", f"{SEED} --strategy dp --link 100mbit,50us --gpu-memory 80g"),
        ("seed-tp", f"{SEED} --strategy tp --link 100mbit,50us"),
        ("shares", f"{SEED} --strategy ddp --shares .25,.25,.10,.4"),
        ("too-large", "--model llama-3-8b --batch 64 --gpus 64 --gpu-memory 80g"),
        (
            "hybrid",
            "--model llama-3-8b --batch 32 --gpus 16 --strategy hybrid --tp 4 --zero 1 --link 400gbit,5us",
        ),
    ],
)
def test_what_the_terminal_shows(size: Desk, name: str, line: str) -> None:
    assert size(line) == 0, size.err
    same_as_golden(f"size/{name}.txt", size.out)


def test_figures_for_programs(size: Desk) -> None:
    document = size.json(f"{SEED} --strategy dp --link 100mbit,50us")
    assert [gradient["bytes"] for gradient in document["model"]["gradients"]] == [2_600, 33_024, 131_584, 803_840]
    assert (document["trials"]["total"], document["trials"]["last_batch"]) == (8, 2656)
    assert document["collectives"][0]["bytes"] == 971_048
    assert document["step_seconds"] == pytest.approx(6 * 50e-6 + 1.5 * 971_048 * 80e-9 * 1514 / 1448)


def test_the_published_emulations_are_emitted_to_the_byte(size: Desk) -> None:
    (dp,) = size.items(f"{SEED} --strategy dp")
    assert (dp["operation"], dp["bytes"], dp["trials"], dp["algorithm"]) == ("all-reduce", 971_048, 8, "ring")
    full, short = size.items(f"{SEED} --strategy tp")
    assert (full["operation"], full["bytes"], full["trials"]) == ("all-gather", 6_438_912, 7)
    assert (short["bytes"], short["trials"]) == (2_087_616, 1)


def test_a_pipeline_is_priced_by_messages_and_emitted_as_exchanges(size: Desk) -> None:
    """4 microbatches: 8 messages a step at a boundary, one way each; an exchange carries one forward and one back."""
    line = "--model mnist-mlp --strategy pp --batch 8192 --link 100mbit,50us"
    for chosen in ("", " --algorithm sequential"):
        rows = size.json(line + chosen)["collectives"]
        assert [(row["bytes"], row["count"]) for row in rows] == [(2_097_152, 8), (1_048_576, 8), (524_288, 8)]
        assert [row["cost"]["seconds"] for row in rows] == [
            pytest.approx(50e-6 + row["bytes"] * 80e-9 * 1514 / 1448) for row in rows
        ]
    assert [(item["bytes"], item["trials"]) for item in size.items(line)] == [
        (2_097_152, 4), (1_048_576, 4), (524_288, 4),
    ]  # fmt: skip


def test_shares_without_a_data_set_have_no_last_batch(size: Desk) -> None:
    line = "--model mnist-mlp --strategy ddp --batch 100 --shares .25,.25,.10,.4"
    assert size(line) == 0
    assert "share     rank 2: 0.1 of a batch = 10 samples; loss x 0.4 (n_i p / N)" in size.out
    assert [share["last"] for share in size.json(line)["shares"]] == [None] * 4


def test_every_emitted_item_holds_whole_elements(size: Desk) -> None:
    lines = (
        "--model gpt2-124m --strategy fsdp --batch 12 --dataset 100",
        "--model llama-3-8b --strategy hybrid --tp 4 --pp 2 --gpus 16 --batch 31 --sequence-parallel",
        "--model mixtral-8x7b --strategy ep --gpus 8 --batch 8",
        f"{SEED} --strategy pp",
    )
    for line in lines:
        for item in size.items(line):
            width = {"float32": 4, "bfloat16": 2, "uint8": 1}[item["dtype"]]
            assert item["bytes"] > 0 and item["bytes"] % width == 0, (line, item)


def test_concurrent_groups_are_emitted(size: Desk) -> None:
    items = size.items("--model gpt2-124m --strategy hybrid --tp 2 --gpus 4 --batch 4")
    groups = [tuple(map(tuple, item["groups"])) for item in items]
    assert list(dict.fromkeys(groups)) == [((0, 1), (2, 3)), ((0, 2), (1, 3))]


def test_a_module_of_the_user_is_summed_on_the_meta_device(size: Desk) -> None:
    (size.root / "net.py").write_text(
        "import torch\n"
        "print('made by the user')\n"
        "def make():\n"
        "    n = torch.nn\n"
        "    return n.Sequential(n.Linear(784, 256), n.ReLU(), n.Linear(256, 128), n.ReLU(), n.Linear(128, 64), n.ReLU(),\n"
        "                        n.Linear(64, 10), n.LogSoftmax(1))\n"
        "def broken():\n"
        "    raise RuntimeError('no weights\\nat all')\n"
    )
    document = size.json("--model net:make --input 784 --batch 8192 --strategy dp")
    assert document["collectives"][0]["bytes"] == 971_048
    # The same as the built-in description: 2 x (256 + 128 + 64 + 10) outputs of 4 bytes, 2,048 samples.
    assert document["memory"]["activations"] == 2 * 458 * 4 * 2048
    assert size("--model net:broken") == 3
    assert size.err.splitlines()[0] == "error: --model net:broken: RuntimeError: no weights at all"
    assert size("--model net:make --input 7") == 3
    assert size.err.startswith("error: --input 7: forward of net:make on the meta device: RuntimeError: ")


def test_a_trace_becomes_a_trial(size: Desk) -> None:
    entry = {"comms": "all_reduce", "in_msg_size": 242_762, "out_msg_size": 242_762, "dtype": "float", "world_size": 4}
    folder = size.root / "trace"
    folder.mkdir()
    for rank in range(4):
        content = json.dumps([{**entry, "startTime_ns": step * 10**9} for step in range(8)]).encode()
        (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(content))
    (item,) = size.items("--trace trace")
    assert (item["bytes"], item["trials"], item["gap_ms"]) == (971_048, 8, [0.0] + 7 * [1000.0])
    assert item["gap_from"] == "start"
    assert "8 collectives in 1 items" in size.out
    assert size.json("--trace trace")["items"] == [item]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "give one of --model and --trace"),
        ("--model mnist-mlp --trace x", "give one of --model and --trace"),
        ("--model mnist-lmp", "unknown model mnist-lmp; did you mean mnist-mlp? (your own module: module:factory)"),
        ("--model mnist-mlp --layers 3", "--layers: not with --model mnist-mlp"),
        ("--model mnist-mlp --strategy tp", "--batch: is missing"),
        ("--model mnist-mlp --dataset 60000", "--batch: is missing: --dataset is counted in batches"),
        ("--model mnist-mlp --batch 3", "--batch: must be >= 4"),
        ("--model mnist-mlp --link quick", "--link: must be RATE,LATENCY"),
        ("--model mnist-mlp --gpu-memory lots", "--gpu-memory: must be a size"),
        ("--model mnist-mlp --dtype float8", "--dtype: must be one of"),
        ("--model mnist-mlp --algorithm rings", "unknown algorithm rings; did you mean ring?"),
        ("--model mnist-mlp --algorithm ring:x=3", "ring has no parameter x"),
        ("--model mnist-mlp --shares .5,.5,.5,.5 --batch 64", "--shares: must sum to 1 (got 2)"),
        ("--model mnist-mlp --shares a,b --batch 64", "--shares: must be numbers"),
        ("--model transformer", "--layers: is missing"),
        ("--model transformer --layers 2 --hidden 10 --heads 3", "--heads: must divide --hidden 10 (got 3)"),
        ("--model nothing:here", "--model nothing:here: ModuleNotFoundError: No module named 'nothing'"),
        ("--trace nowhere.json", "--trace nowhere.json: no such file or folder"),
        ("--trace . --batch 3", "--batch: not with --trace"),
        ("--trace bare", "no trace: that folder has"),
        ("--trace odd.json", "odd.json: neither a PARAM comms trace nor a Chakra execution trace"),
        ("--model mnist-mlp --emit .", "--emit: File '.' is a directory"),
        ("--model mnist-mlp --emit no/such/folder.yml", "--emit no/such/folder.yml: no such directory: no/such"),
    ],
)
def test_what_it_refuses(size: Desk, line: str, problem: str) -> None:
    (size.root / "odd.json").write_text('{"a": 1}')
    (size.root / "bare").mkdir()
    assert size(line) == 3
    assert problem in size.err
    assert "internal error" not in size.err
    assert "\nnext: " in size.err, "what to do about it"


def test_a_file_with_another_content_is_not_written_over(size: Desk) -> None:
    line = "--model mnist-mlp --batch 8192 --dataset 60000 --strategy dp --emit mine.yml"
    (size.root / "mine.yml").write_text("precious")
    assert size(line) == 3
    assert (
        size.err
        == "error: --emit mine.yml: exists with another content\nnext: overwrite it with --force, or give another name\n"
    )
    assert (size.out, (size.root / "mine.yml").read_text()) == ("", "precious")
    assert size(f"{line} --force") == 0
    made = (size.root / "mine.yml").read_text()
    assert "workload: emulate" in made
    assert size(line) == 0, "the same again is no loss"


def test_an_emitted_trial_recovers_from_nothing_as_the_shipped_ones(size: Desk) -> None:
    assert size("--model mnist-mlp --batch 8192 --strategy dp --emit t.yml") == 0
    assert yaml.safe_load((size.root / "t.yml").read_text())["recovery"] == {"policy": "none"}


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("nothing:here", "next: print the traceback: python -c 'from nothing import here; here()'"),
        ("a/net.py:make", "next: name the module without .py: --model a.net:make"),
    ],
)
def test_a_module_that_cannot_be_had_is_told_with_a_line_that_shows_why(size: Desk, spec: str, hint: str) -> None:
    assert size(f"--model {spec}") == 3
    assert hint in size.err


def test_all_mistakes_are_told_at_once(size: Desk) -> None:
    assert size("--model mnist-lmp --link quick --gpu-memory lots --shares a") == 3
    assert len([line for line in size.err.splitlines() if line.startswith("error:")]) == 4
