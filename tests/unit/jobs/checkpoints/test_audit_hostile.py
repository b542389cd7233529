"""Files that were made to mislead or exhaust the audit: it ends, within bounds, with a verdict."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from click.testing import CliRunner

from orchestrator.jobs.checkpoints import audit as audits
from orchestrator.jobs.checkpoints import pickled
from orchestrator.jobs.verbs import checkpoint_verb

from .test_audit import outcome, texts

PROTOCOL = b"\x80\x04"
NOTHING = PROTOCOL + b"N."
#: A list of twice a list of twice a list …: its text would never end.
DOUBLED = b"]q\x00" + b"(h\x00h\x00lq\x00" * 60


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PROTOCOL + b"}N" + b"\x85" * 100_000 + b"Ns.", "a key in its pickle has more than 1,000 parts"),
        (PROTOCOL + b"})" + b"2\x86" * 60 + b"Ns.", "a key in its pickle has more than 1,000 parts"),
        (PROTOCOL + DOUBLED + b"\x8c\x01a\x93.", "its pickle names a class that has no name"),
    ],
    ids=["a deep tuple is a key", "a key of 2^60 parts", "a name of 2^60 parts"],
)
def test_a_value_that_would_never_end_is_not_followed(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "state.pkl").write_bytes(content)
    assert expected in texts(tmp_path)


def test_a_small_pickle_demands_no_large_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "_MOST_COPIED", 1000)
    monkeypatch.setattr(pickled, "_MOST_OPCODES", 1000)
    path = tmp_path / "state.pkl"
    path.write_bytes(PROTOCOL + b"ctorch\nSize\nq\x00](" + b"N" * 100 + b"e\x85q\x01" + b"h\x00h\x01R" * 20 + b".")
    assert "copies more than 1,000 values" in texts(tmp_path)
    path.write_bytes(PROTOCOL + b"]" * 2000 + b".")
    assert "more than 1,000 opcodes" in texts(tmp_path)
    path.write_bytes(PROTOCOL + b"]" * 200 + b".")
    assert outcome(tmp_path) == "whole"


@pytest.mark.parametrize("name", ["state.pkl", "trainer_state.json"])
def test_a_file_without_an_end_is_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.write(PROTOCOL + b"\x8e" + struct.pack("<Q", 1 << 40))
        file.truncate(1 << 40)
    assert outcome(tmp_path) == "unknown"


def test_a_rank_of_any_size_is_a_gap(tmp_path: Path) -> None:
    for rank in (0, 10**12):
        (tmp_path / f"state_rank{rank}.pkl").write_bytes(NOTHING)
    assert "is missing for rank 1, 2, 3" in texts(tmp_path)


@pytest.mark.parametrize("name", ["x" * 3000, "²", "a\0b"])
def test_a_pointer_may_hold_any_text(tmp_path: Path, name: str) -> None:
    (tmp_path / "state_1.pkl").write_bytes(NOTHING)
    (tmp_path / "latest").write_text(name)
    assert "which is not there" in texts(tmp_path)


def test_an_index_may_name_any_path(tmp_path: Path) -> None:
    weights = {"a": "/dev/zero", "b": "x\0y", "c": "n" * 5000, "d": ["q"]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert outcome(tmp_path) == "damaged"


def metadata(file: bytes, start: int) -> bytes:
    """The .metadata of one piece: bytes, of length 0."""

    def text(content: bytes) -> bytes:
        return b"X" + struct.pack("<I", len(content)) + content

    index = b"cm\nI\n)R}(" + text(b"fqn") + text(b"w") + text(b"offset") + b"Nub"
    place = b"cm\nS\n)R}(" + text(b"relative_path") + text(file) + text(b"offset") + b"J" + struct.pack("<i", start)
    place += text(b"length") + b"K\x00ub"
    entries = text(b"state_dict_metadata") + b"}" + text(b"w") + b"cm\nB\n)Rs"
    return PROTOCOL + b"cm\nM\n)R}(" + entries + text(b"storage_data") + b"}" + index + place + b"sub."


@pytest.mark.parametrize(
    ("file", "start", "expected"),
    [
        (b"pipe", 0, "pipe is missing"),
        (b"n" * 5000, 0, "is missing"),
        (b"a\0b", 0, "is missing"),
        (b"/dev/zero", 0, "the place of a piece is damaged"),
        (b"../state", 0, "the place of a piece is damaged"),
        (b"a.distcp", -500, "the place of a piece is damaged"),
    ],
)
def test_the_metadata_may_name_any_file(tmp_path: Path, file: bytes, start: int, expected: str) -> None:
    (tmp_path / ".metadata").write_bytes(metadata(file, start))
    (tmp_path / "a.distcp").write_bytes(b"PK\3\4")
    os.mkfifo(tmp_path / "pipe")
    assert expected in texts(tmp_path)


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state_1.pkl").write_bytes(NOTHING)

    def refuse(*_args: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert "it cannot be read: Permission denied" in texts(tmp_path)
        assert outcome(tmp_path) == "unknown"


def test_a_file_that_vanishes_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state_1.pkl").write_bytes(NOTHING)
    listing = audits._Listing

    def later(root: Path) -> audits._Listing:
        made = listing(root)
        (root / "state_1.pkl").unlink()
        return made

    monkeypatch.setattr(audits, "_Listing", later)
    assert outcome(tmp_path) == "unknown"


def test_a_step_that_no_number_can_be_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 1%s}' % ("0" * 400))
    assert audits.audit(tmp_path).checkpoints[0].step is None


def test_names_are_printed_without_what_a_terminal_obeys() -> None:
    assert re.fullmatch(r"[ -~]+", checkpoint_verb._printable("a\nPASS\x1b[2J\udcff\u202e"))
    assert checkpoint_verb._printable("größe 1") == "größe 1"


@pytest.mark.parametrize("value", [b"\x8e" + struct.pack("<Q", 1 << 40), b"S"], ids=["a value", "a line"])
def test_a_pickle_without_an_end_inside_another_form_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    monkeypatch.setattr(pickled, "MOST_BYTES", 1 << 16)
    begin = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
    for path, head in ((tmp_path / "a.pt", begin), (tmp_path / "step_1" / ".metadata", b"")):
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(head + PROTOCOL + value)
            file.truncate(1 << 40)
    assert [checkpoint.outcome for checkpoint in audits.audit(tmp_path).checkpoints] == ["unknown", "unknown"]


def test_every_record_of_an_archive_is_compared_with_its_checksum(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    assert outcome(tmp_path) == "whole"
    assert content.count(b"little") == 1
    (tmp_path / "a.pt").write_bytes(content.replace(b"little", b"littlf"))
    assert "byteorder is damaged" in texts(tmp_path)


def test_what_is_not_shown_is_counted_by_its_outcome(tmp_path: Path) -> None:
    for step in range(12):
        (tmp_path / f"step_{step}.pt").write_bytes(b"PK\3\4")
    result = CliRunner().invoke(
        checkpoint_verb.command, ["check", str(tmp_path)], obj=SimpleNamespace(terminal=Lines(), is_json=False)
    )
    assert "4 more are damaged" in Lines.printed, result.output


class Lines:
    """A terminal that keeps its lines."""

    printed: ClassVar[list[str]] = []

    def line(self, text: str) -> None:
        self.printed.append(text)

    def lines(self, texts: Iterable[str]) -> None:
        self.printed.extend(texts)
