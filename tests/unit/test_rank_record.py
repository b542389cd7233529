"""Event lines are numbered and complete; chunk records are of the stated format."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from orchestrator.model import codec, event, events
from orchestrator.rank.runtime import recorder


def test_a_note_is_an_event_with_its_writer_and_number(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.e1.jsonl"
    notes = recorder.Notes(str(path), node="n3", incarnation="ab12", rank=3, epoch=1)
    notes.note(events.RankJoined(rank=3, world=4, backend="gloo"))
    notes.emit("mine.seen", step=25, name=None)
    first, second = (codec.build(event.Event, json.loads(line)) for line in path.read_text().splitlines())
    assert (first.type, first.f, first.node, first.epoch) == ("note", "rank.joined", "n3", 1)
    assert first.value == {"rank": 3, "world": 4, "backend": "gloo"}
    assert first.source.identity == ("n3", "ab12", "rank-3.e1", 1)
    assert second.source.n == 2 and second.value == {"rank": 3, "step": 25, "name": None}
    assert first.at.boot and second.at.mono >= first.at.mono


def test_a_step_line_has_the_loss_as_hex(tmp_path: Path) -> None:
    recorder.Steps(str(tmp_path / "s")).add(26, 1.5, 2.0, 2.5, None)
    assert json.loads((tmp_path / "s").read_text()) == {
        "step": 26, "loss": "0x1.8000000000000p+0", "start": 2.0, "end": 2.5, "digest": None,
    }  # fmt: skip


def test_chunks_are_written_on_flush_and_never_lost_when_there_are_many(tmp_path: Path) -> None:
    path = tmp_path / "c"
    chunks = recorder.Chunks(str(path), capacity=2)
    rows = [(step, 0, 1, 2, 3, 242_764, 1.25, 1.5) for step in range(5)]
    for row in rows:
        chunks.add(*row)
    assert path.read_bytes() == b""
    chunks.flush()
    chunks.flush()
    assert recorder.CHUNK.size == struct.calcsize("<IHHHHQdd") == 36
    assert list(recorder.CHUNK.iter_unpack(path.read_bytes())) == rows
