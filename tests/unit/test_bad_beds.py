"""Inventories, options and beds that are wrong: told all at once, with place, reason and next step, before anything is touched."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.app import announcement
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec
from orchestrator.store import bed_files


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def ccbed(state: Path, *args: str) -> tuple[int, str]:
    out = io.StringIO()
    desk = terminal_session.Session(state=state, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "abcdef")
    return main.run(args, desk), out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"all:\n  hosts: [\n", "b.yml:3: not valid YAML"),
        (b"\xff\xfe\x00", "b.yml: not valid YAML: not UTF-8 text"),
        (b"", "b.yml: must be a mapping with the group `all` (got nothing)"),
        (
            b"all: {hosts: {h: {ansible_connection: local, ccbed_nodes: -1}}}\n",
            "b.yml:1: hosts.h.ccbed_nodes: must be >= 0",
        ),
        (b"all: {hosts: {h: {ansible_connection: local, ccbed_gpus: two}}}\n", "ccbed_gpus: must be a whole number"),
        (b"all: {hosts: {h: {ansible_connection: local, ccbed_nods: 2}}}\n", "did you mean ccbed_nodes?"),
        (b"all: {hosts: {h: {ansible_connection: local, ccbed_nodes: 1000000}}}\n", "must be <= 1024"),
        pytest.param(
            b"all: {hosts: {h: {ccbed_nodes: 2, ccbed_provider: process}}}\n",
            "b.yml:1: hosts.h.ansible_connection: provider process runs on the",
            marks=pytest.mark.slow,
        ),
        (b"a: &a [*a]\n", "b.yml: not valid YAML: an alias contains itself"),
    ],
)
def test_a_wrong_inventory_brings_nothing_up(state: Path, tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "b.yml").write_bytes(text)
    for verb in (("up",), ("plan",), ("run", "dp-ring", "-i")):
        code, output = ccbed(state, *verb, str(tmp_path / "b.yml"))
        assert code == 3
        assert expected in output
        assert "next: " in output
    assert bed_files.names(state) == ()


@pytest.mark.parametrize(
    "args", ["run dp-ring", "run dp-ring --fail-node 2", "exec n0 -- true", "heal", "run dp-ring --dry-run"]
)
def test_without_a_bed_the_next_step_is_up(state: Path, args: str) -> None:
    code, expected = ccbed(state, *args.split())
    assert (code, expected) == (3, "error: no bed is up\nnext: ccbed up inventories/local.yml\n")


def test_of_two_beds_one_must_be_named(state: Path) -> None:
    spec = BedSpec(
        name="a",
        provider="process",
        nodes=(),
        inventory="a.yml",
        workdir=str(state / "beds/a"),
        shared_dir="",
        agent="",
    )
    for name in ("a", "b"):
        bed_files.write(state, replace(spec, name=name))
    for args, hint in (("run dp-ring", "--bed a"), ("heal", "ccbed heal a"), ("exec n0 -- true", "ccbed exec a/n0")):
        code, errors = ccbed(state, *args.split())
        assert code == 3 and errors.startswith(f"error: several beds are up: a, b\nnext: {hint}"), errors


def test_a_damaged_bed_file_is_named(state: Path) -> None:
    (state / "beds").mkdir(parents=True)
    (state / "beds/a.json").write_text("{")
    code, expected = ccbed(state, "run", "dp-ring")
    assert code == 4
    assert "beds/a.json: not a readable bed file" in expected
    assert "next: " in expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("run dp-ring --fail-node -1", "must be >= 0, or a node's name such as n2 (got -1)"),
        ("run dp-ring --nodes -3", "--nodes: must be >= 1 (got -3)"),
        ("run dp-ring --ranks-per-node 100000", "--ranks-per-node: must be <= 256"),
        ("run dp-ring --batch x", "--batch: must be a whole number (got x)"),
        (
            "run dp-ring --recovery frob",
            "--recovery: unknown policy; known: auto, none, replace, restart, shrink, spare, theirs (got frob)",
        ),
        ("run dp-ring --at 10s", "--at needs --fail-node"),
        ("run dp-ring --fail-node 2 --at step=", "at.step: must be a whole number"),
        ("run dp-ring --frob", "unknown option --frob"),
        ("run dp-rong", "no trial dp-rong; did you mean dp-ring?"),
        ("run nowhere.yml", "nowhere.yml: cannot be read: No such file or directory"),
        ("frob", "unknown verb frob"),
        ("check", "no run yet"),
        ("check /nowhere", "no run /nowhere"),
        ("bundle verify /nowhere.tar.gz", "no run /nowhere.tar.gz"),
    ],
)
def test_wrong_options_are_told_with_the_next_step(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = ccbed(state, *args.split())
    assert code == 3
    assert expected in output
    assert "next: " in output
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} <= {announcement.FOLDER}, "nothing but why no run began"


def test_a_disk_that_refuses_is_no_defect_of_ours(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/some/where")

    monkeypatch.setattr(bed_files, "names", full)
    code, expected = ccbed(state, "status")
    assert (code, expected) == (
        4,
        "error: /some/where: No space left on device\nnext: free space or give access, then try again\n",
    )
