"""YAML that is small and means gigabytes, that nests without end, or that is one line of a megabyte."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.core.spec import source_positions
from orchestrator.model.errors import UsageError
from orchestrator.prepare import ansible_listing, read_inventory
from orchestrator.prepare.vault import Vault

pytestmark = pytest.mark.attack

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
REJECTED = {
    "aliases of aliases": (LAUGHS, ":5: aliases stand for more than 10,000 values"),
    "an alias of itself": ("a: &a {b: *a}\n", "an alias contains itself"),
    "lists in lists": ("[" * 100_000, ":1: nested more than 64 levels deep"),
    "lists in lists by dashes": ("- " * 100_000, ":1: nested more than 64 levels deep"),
    "mappings in mappings": ("{a: " * 50_000, ":1: nested more than 64 levels deep"),
    "aliases that nest": ("a: &a [[[[x]]]]\n" + "".join(
        f"b{n}: &b{n} [[[[{f'*b{n - 1}' if n else '*a'}]]]]\n" for n in range(20)
    ), "nested more than 64 levels deep"),
    "a million values": ("[" + "1, " * 1_000_000 + "]", ":1: more than 300,000 values"),
    "a number of a million digits": ("seed: " + "9" * 1_000_000, ":1: a number of more than 400 characters"),
    "a number in base 60": ("seed: 1" + ":1" * 100_000, ":1: a number of more than 400 characters"),
    "mappings as keys": ("? " * 100_000, "a key must be a name or a number"),
    "two documents": ("a: 1\n--- \nb: 1\n", ":2: not valid YAML: but found another document"),
}  # fmt: skip
#: An idle core takes under 1.5 s for each text here; before the limits, some took minutes. CPU seconds.
HANGS_S = 15
LINES = {
    "a mapping": "{" + ", ".join(f"k{n}: {n}" for n in range(80_000)) + "}",
    "mappings in a list": "[" + ",".join('{"b": 1}' for _ in range(110_000)) + "]",
    "a text": "a: " + "word " * 200_000,
    "a quoted text": 'a: "' + "\\u0041" * 170_000 + '"',
    "anchors": "[" + ", ".join(f"&a{n} x" for n in range(90_000)) + "]",
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_yaml_text_beyond_the_limits_is_rejected_with_its_place(name: str) -> None:
    text, message = REJECTED[name]
    started = time.process_time()
    with pytest.raises(UsageError) as caught:
        source_positions.load(text, "t.yml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.yml:")
    assert time.process_time() - started < HANGS_S


@pytest.mark.parametrize("name", LINES)
def test_a_megabyte_on_one_line_is_read_in_seconds(name: str) -> None:
    assert len(LINES[name]) > 900_000
    started = time.process_time()
    assert source_positions.load(LINES[name], "t.yml").content
    assert time.process_time() - started < HANGS_S


def test_what_an_alias_stands_for_keeps_its_lines() -> None:
    text = "base: &base\n  gpus: 2\n  mounts: [a, b]\nh1: *base\nh2:\n  *base\n"
    document = source_positions.load(text, "i.yml")
    assert document.content["h1"] == document.content["h2"] == {"gpus": 2, "mounts": ["a", "b"]}
    assert document.line("h1") == 4 and document.line("h2") == 5
    assert document.line("h1", "gpus") == document.line("h2", "gpus") == 2
    assert document.line("h2", "mounts", 1) == 3
    assert document.content["h1"] is not document.content["h2"]


@pytest.mark.parametrize("name", ["hosts.yml", "hosts.json", "hosts", "hosts.ini"])
@pytest.mark.parametrize("folder", ["", "group_vars"])
def test_ansible_never_loads_an_inventory_beyond_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    monkeypatch.setattr(ansible_listing, "_list", lambda *_: pytest.fail("Ansible was started"))
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "lab.yml").write_text("all: {hosts: {h1: {}}}\n")
    target = tmp_path / folder / (f"all{Path(name).suffix}".removesuffix(".ini") if folder else name)
    target.write_text(LAUGHS)
    with pytest.raises(UsageError, match="aliases stand for more than 10,000 values"):
        read_inventory.read(tmp_path, Vault(), tmp_path)


def test_a_large_inventory_never_reaches_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible_listing, "_list", lambda *_: pytest.fail("Ansible was started"))
    with (tmp_path / "hosts").open("wb") as file:
        file.truncate(3 * 1024**3)
    with pytest.raises(UsageError, match="larger than the 16,777,216 bytes that are read"):
        read_inventory.read(tmp_path / "hosts", Vault(), tmp_path)
