"""Event files followed by offset: whole lines, once, in the order of the writers' clocks."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.model.event import Clock, Event, Source
from orchestrator.model.provider import Cursors
from orchestrator.node.files.event_log import EventLog, count_lines
from orchestrator.providers import event_reader
from orchestrator.system import inotify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "keeper").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "keeper/events.jsonl").touch()
    return tmp_path


def _follower(root: Path) -> event_reader.Follower:
    return event_reader.Follower(root, "r1", [root / "runs"], [root / "keeper/events.jsonl"])


def test_lines_are_told_once_and_cursors_resume(root: Path) -> None:
    follower, log = _follower(root), EventLog(root / "runs/a.jsonl", writer="agent")
    log.append("note", "one", {"x": 1}, node="n0", incarnation="aa", epoch=0)
    first, cursors = follower.poll({}, 0)
    log.append("note", "two", {})
    second, after = follower.poll(cursors, 0)
    assert ([e.f for e in first], [e.f for e in second]) == (["one"], ["two"])
    assert follower.poll(after, 0)[0] == []
    assert [e.f for e in _follower(root).poll(cursors, 0)[0]] == ["two"]
    assert first[0].source.identity == ("n0", "aa", "agent", 1) and first[0].value == {"x": 1}


def test_a_line_counts_when_it_is_whole(root: Path) -> None:
    log, path = EventLog(root / "whole.jsonl", writer="agent"), root / "runs/a.jsonl"
    log.append("note", "one", {})
    line = (root / "whole.jsonl").read_bytes()
    path.write_bytes(line + line[:20])
    events, cursors = _follower(root).poll({}, 0)
    assert len(events) == 1 and cursors["runs/a.jsonl"] == len(line)
    path.write_bytes(line + line)
    assert len(_follower(root).poll(cursors, 0)[0]) == 1


def test_lines_of_other_runs_and_torn_ones_are_left_out(root: Path) -> None:
    log = EventLog(root / "keeper/events.jsonl", writer="keeper")
    log.append("note", "of-all", {})
    log.append("note", "mine", {}, run="r1")
    log.append("note", "another's", {}, run="r2")
    with (root / "keeper/events.jsonl").open("ab") as file:
        file.write(b'{"type": "no\n[1]\n{"type": "note"}\n')
    log.append("note", "after", {})
    assert [e.f for e in _follower(root).poll({}, 0)[0]] == ["of-all", "mine", "after"]
    assert count_lines(root / "keeper/events.jsonl") == 7


def test_events_of_several_writers_come_in_the_order_of_their_clocks(root: Path) -> None:
    logs = [EventLog(root / f"runs/{name}.jsonl", writer=name) for name in ("b", "a")]
    for number in range(6):
        logs[number % 2].append("note", str(number), {})
    assert [e.f for e in _follower(root).poll({}, 0)[0]] == list("012345")


def test_clocks_of_different_boots_are_not_compared() -> None:
    def event(boot: str, mono: float, n: int) -> Event:
        source = Source(writer="agent", n=n, node=boot)
        return Event(type="note", f="x", at=Clock(boot=boot, mono=mono, wall=0.0), source=source)

    first, second, rebooted = event("a", 900.0, 1), event("b", 5.0, 2), event("a", 901.0, 3)
    later = event("c", 1.0, 4)
    assert event_reader.in_order([rebooted, later, second, first]) == [first, rebooted, later, second]


@pytest.mark.parametrize("instances", ["those of the kernel", "none left"])
def test_the_first_line_of_a_new_file_ends_the_wait(
    root: Path, instances: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instances == "none left":
        monkeypatch.setattr(inotify.Watcher, "add_watch", lambda *_: False)
    follower = _follower(root)
    EventLog(root / "whole.jsonl", writer="agent").append("note", "one", {})
    line = (root / "whole.jsonl").read_bytes()
    waited = threading.Timer(0.05, lambda: (root / "runs/new.jsonl").write_bytes(line))
    waited.start()
    start = time.monotonic()
    events: list[object] = []
    cursors: dict[str, int] = {}
    while not events and time.monotonic() - start < 600:
        more, after = follower.poll(cursors, 600.0)
        events, cursors = [*events, *more], dict(after)
    waited.join()
    assert events and time.monotonic() - start < 300


def test_a_writer_numbers_its_lines_also_after_it_opened_the_file_again(root: Path) -> None:
    for _ in range(3):
        log = EventLog(root / "runs/a.jsonl", writer="agent")
        log.append("note", "x", {})
        log.close()
    numbers = [json.loads(line)["source"]["n"] for line in (root / "runs/a.jsonl").read_text().splitlines()]
    assert numbers == [1, 2, 3]


def _names_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    names: list[str] = []
    read = event_reader.whole_lines

    def read_and_note(path: str, offset: int) -> tuple[list[bytes], int]:
        names.append(Path(path).name)
        return read(path, offset)

    monkeypatch.setattr(event_reader, "whole_lines", read_and_note)
    return names


def test_a_poll_reads_what_was_reported_and_all_files_now_and_then(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: set[tuple[str, str]] = set()
    monkeypatch.setattr(event_reader, "SCAN_S", 3600.0)
    monkeypatch.setattr(inotify.Watcher, "add_watch", lambda *_: True)  # also where the user has no instance left
    monkeypatch.setattr(inotify.Watcher, "read_changes", lambda _: (reported, False))
    follower, logs = _follower(root), [EventLog(root / f"runs/{name}.jsonl", writer=name) for name in "ab"]
    for log in logs:
        log.append("note", "one", {})
    _, cursors = follower.poll({}, 0)
    _, cursors = follower.poll(cursors, 0)
    names = _names_read(monkeypatch)
    logs[1].append("note", "two", {})
    reported.add((str(root / "runs"), "b.jsonl"))
    events, cursors = follower.poll(cursors, 0)
    assert ([event.f for event in events], names) == (["two"], ["b.jsonl"])
    follower._scan_at = 0.0
    assert follower.poll(cursors, 0)[0] == [] and set(names) == {"a.jsonl", "b.jsonl", "events.jsonl"}


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.25), (0.02, 1.0), (3.0, 5.0)])
def test_the_pause_between_two_reads_of_all_files_grows_with_their_time_up_to_five_seconds(
    root: Path, took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a read of 3 s on a stalled disk, an event that the kernel did not report was missing for 150 s."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now

    def read(path: str, offset: int) -> tuple[list[bytes], int]:
        clock.now += took_s
        return [], offset

    follower = _follower(root)
    monkeypatch.setattr(event_reader, "time", clock)
    monkeypatch.setattr(event_reader, "whole_lines", read)
    follower.poll({}, 0)
    assert clock.now == pytest.approx(100.0 + took_s), "one file"
    assert follower._scan_at - clock.now == pytest.approx(pause_s)


@pytest.mark.parametrize("limit", ["watches", "reports"])
def test_without_reports_of_the_kernel_all_files_are_read(
    root: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "SCAN_S", 3600.0)
    if limit == "watches":
        monkeypatch.setattr(inotify.Watcher, "add_watch", lambda *_: False)
    log = EventLog(root / "runs/a.jsonl", writer="agent")
    follower = _follower(root)
    _, cursors = follower.poll({}, 0)
    monkeypatch.setattr(inotify.Watcher, "read_changes", lambda _: (set(), limit == "reports"))
    log.append("note", "one", {})
    assert [event.f for event in follower.poll(cursors, 0)[0]] == ["one"]


def test_the_rest_of_a_long_file_is_read_without_another_report(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify.Watcher, "add_watch", lambda *_: True)
    monkeypatch.setattr(event_reader, "SCAN_S", 3600.0)
    log = EventLog(root / "runs/a.jsonl", writer="agent")
    for number in range(3):
        log.append("note", str(number), {})
    monkeypatch.setattr(event_reader, "CHUNK", (root / "runs/a.jsonl").stat().st_size // 3 + 8)
    follower = _follower(root)
    cursors: Cursors = {}
    names: list[str] = []
    for _ in range(3):
        events, cursors = follower.poll(cursors, 0)
        names += [event.f for event in events]
    assert names == ["0", "1", "2"]


def test_a_watcher_that_is_closed_has_no_number_that_another_file_may_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes milliseconds to end the watches, and the number is free at once. A second close does nothing."""
    watcher, numbers, close = inotify.Watcher(), list[int](), os.close
    number = watcher.fd
    monkeypatch.setattr(os, "close", lambda fd: numbers.append(watcher.fd) if fd == number else close(fd))
    watcher.close()
    watcher.close()
    assert numbers == [-1]
    close(number)
