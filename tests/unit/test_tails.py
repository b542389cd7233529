"""Bulk that is written anew is sent anew, and what grows is not sent twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.hostlink.tails import Tails, Tree

RUN = "nodes/n0/runs/R"
LOG = f"{RUN}/i1-e0/rank-0.log"


class Sent:
    """A host's files, and what the other side has of them."""

    def __init__(self, root: Path) -> None:
        self.path = root / LOG
        self.path.parent.mkdir(parents=True)
        self.tails = Tails(str(root))
        self.has: dict[str, bytes] = {}
        self.frames = 0

    def write(self, data: bytes, second: int, *, at: int | None = None) -> None:
        """The whole file, or bytes in it; at a time of its own, whatever the grain of the clock is."""
        if at is None:
            self.path.write_bytes(data)
        else:
            with self.path.open("r+b") as file:
                os.pwrite(file.fileno(), data, at)
        os.utime(self.path, (second, second))

    def send(self, *, is_final: bool = False) -> int:
        """Look, and send all; how many frames it took."""
        self.tails.poll(is_final=is_final)
        before = self.frames
        while frame := self.tails.take(events=True) or self.tails.take(events=False):
            header, data = frame
            received = self.has.get(header["file"], b"")[: header["at"]]
            assert len(received) == header["at"]
            self.has[header["file"]] = received + data
            self.frames += 1
        return self.frames - before


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    made = Sent(tmp_path)
    made.tails.follow([Tree(path=RUN, node="n0", deep=True)], {})
    return made


@pytest.mark.parametrize("anew", [b"SAME size", b"less", b"", b"longer than what was there"])
@pytest.mark.parametrize("is_final", [False, True])
def test_a_file_that_was_written_anew_in_place_is_sent_anew(sent: Sent, anew: bytes, is_final: bool) -> None:
    sent.write(b"same size", 1)
    sent.send()
    sent.write(anew, 2)
    sent.send(is_final=is_final)
    sent.send(is_final=is_final)
    assert sent.has[LOG] == anew


def test_a_few_bytes_that_were_changed_in_place_are_there(sent: Sent) -> None:
    sent.write(b"x" * 600_000, 1)
    sent.send()
    sent.write(b"counter", 2, at=10)
    sent.send(is_final=True)
    assert sent.has[LOG] == sent.path.read_bytes()


def test_what_was_changed_and_goes_on_changing_waits_for_its_end(sent: Sent) -> None:
    sent.write(b"00", 1)
    sent.send()
    for second in range(2, 6):
        sent.write(f"{second:02}".encode(), second)
        assert sent.send() == 0
    assert sent.send() == 1
    assert sent.has[LOG] == b"05"


def test_what_grows_is_sent_once(sent: Sent) -> None:
    content = b""
    for second in range(1, 20):
        content += os.urandom(1000 * second)
        sent.write(content, second)
        assert sent.send(is_final=second % 2 == 0) == 1
        assert sent.send() == sent.send(is_final=True) == 0
    assert sent.has[LOG] == content


def test_growth_between_a_look_and_its_reading_is_no_change(sent: Sent) -> None:
    sent.write(b"one\n", 1)
    sent.tails.poll()
    sent.write(b"one\ntwo\n", 2)
    sent.send()
    assert sent.has[LOG] == b"one\ntwo\n"
    assert sent.send() == sent.send() == sent.send(is_final=True) == 0


def test_events_are_only_ever_appended(sent: Sent) -> None:
    events = sent.path.parents[1] / "agent.a.jsonl"
    events.write_bytes(b"{}\n")
    sent.send()
    os.utime(events, (5, 5))
    assert sent.send() == sent.send(is_final=True) == 0


def test_a_cap_counts_what_is_there_and_not_what_was_sent_before(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    sent.tails.follow([Tree(path=RUN, node="n0", deep=True, cap=1000)], {})
    for second in range(1, 5):
        sent.write(os.urandom(900), second)
        sent.send(is_final=True)
    assert sent.has[LOG] == sent.path.read_bytes() and not sent.tails.capped(RUN)
    sent.write(os.urandom(1200), 6)
    sent.send(is_final=True)
    assert sent.tails.capped(RUN) == [LOG]
    sent.write(b"small", 7)
    sent.send(is_final=True)
    assert sent.has[LOG] == b"small"
