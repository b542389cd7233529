"""A slow link: heartbeats go first and are not late, events before bulk, and bulk in pieces no larger than the link bears."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from orchestrator.node.hostlink import frames
from orchestrator.node.hostlink.frames import Decoder, SendWindow
from orchestrator.node.hostlink.link_server import LinkServer

from .test_link_server import RUN

LOG, EVENTS = f"{RUN}/i1-e0/rank-0.log", f"{RUN}/agent.a.jsonl"


def _delays(rate: float, trip_s: float, seconds: float) -> tuple[list[float], int]:
    """How long each piece is on its way over a link of so many bytes per second that buffers without end; what arrived."""
    window, now, free, arrived = SendWindow(), 0.0, 0.0, 0
    under_way: deque[tuple[float, int | None, int]] = deque()
    delays = []
    while now < seconds:
        while under_way and under_way[0][0] <= now:
            _, position, size = under_way.popleft()
            arrived += size
            if position is not None:
                window.acknowledge(position, now)
        if size := window.free_bytes(events=False):
            free = max(free, now) + size / rate
            under_way.append((free + trip_s, window.count_sent(size, now), size))
            delays.append(free + trip_s - now)
        else:
            now = under_way[0][0]
    return delays, arrived


@pytest.mark.parametrize("rate", [50e3, 1e6, 10e6])
@pytest.mark.parametrize("trip_s", [0.001, 0.1])
def test_little_is_under_way_on_a_slow_link_and_it_is_used_all_the_same(rate: float, trip_s: float) -> None:
    delays, arrived = _delays(rate, trip_s, 20.0)
    later = sorted(delays[len(delays) // 2 :])
    assert later[len(later) // 2] < trip_s + 2 * frames.MAX_DELAY_S
    assert later[-1] < trip_s + 4 * frames.MAX_DELAY_S
    assert arrived > 0.6 * rate * 20.0


def test_it_opens_again_however_far_it_was_narrowed() -> None:
    window, now = SendWindow(), 0.0
    window.acknowledge(window.count_sent(100, 0.0) or 0, 0.001)
    for _ in range(50):
        positions = []
        while size := window.free_bytes(events=True):
            positions.append(window.count_sent(size, now))
        now += 30.0
        for position in filter(None, positions):
            window.acknowledge(position, now)
        assert window.free_bytes(events=False)
    assert window.size == frames.LEAST


def _headers(server: LinkServer) -> list[dict[str, object]]:
    """The headers of what goes out, while the other side is silent."""
    decoder = Decoder()
    headers: list[dict[str, object]] = []
    while True:
        server._fill()
        if not server._out:
            return headers
        headers += [header for header, _ in decoder.feed(bytes(server._out))]
        server._out = memoryview(b"")


def test_beats_go_before_answers_these_before_events_and_bulk_comes_last_in_pieces(tmp_path: Path) -> None:
    for name, size in ((LOG, 3 << 20), (EVENTS, 10_000)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "nodes/n0/heartbeat").write_text("a 1\n")
    server = LinkServer(str(tmp_path), [], {})
    trees = [{"path": RUN, "node": "n0", "deep": True}]
    server._perform({"id": 1, "do": "watch", "trees": trees, "beats": ["n0"]}, b"")
    server._perform({"id": 2, "do": "ping"}, b"")
    server._collect_beats(time.monotonic())
    headers = _headers(server)
    kinds = ["beats" if "beats" in header else header.get("id") or header["file"] for header in headers]
    assert kinds[:2] == ["beats", 2]
    assert kinds.index(1) == kinds.index(LOG) - 1 > kinds.index(EVENTS)
    assert all(int(str(header.get("size", 0))) <= frames.START // frames.PIECES for header in headers)
    assert sum(int(str(header["size"])) for header in headers if header.get("file") == LOG) <= frames.START
    server.close()


def test_only_the_last_of_each_beat_waits_for_a_link_that_stands_still(tmp_path: Path) -> None:
    heart = tmp_path / "nodes/n0/heartbeat"
    heart.parent.mkdir(parents=True)
    server = LinkServer(str(tmp_path), [], {})
    server._perform({"id": 1, "do": "watch", "trees": [], "beats": ["n0"]}, b"")
    for count in range(5):
        heart.write_text(f"a {count}\n")
        server._collect_beats(time.monotonic() + count)
    assert [header["beats"] for header in _headers(server) if "beats" in header] == [{"n0": ["a", 4]}]
    server.close()


def test_beats_are_not_late_behind_bulk_on_a_link_that_buffers_much(tmp_path: Path) -> None:
    """200 kB/s and a buffer of 1 MB, five seconds of it: what was written there before would be heard that much later.

    Time in which the machine does not run this test counts for nothing.
    """
    import fcntl

    from orchestrator.providers.ssh.host_requests import Link

    from .piped import Heard, serving

    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_bytes(os.urandom(20 << 20))
    late: list[float] = []
    done = threading.Event()

    class Timed(Heard):
        def frame(self, header, body):  # type: ignore[no-untyped-def]
            for _, count in header.get("beats", {}).values():
                late.append(time.monotonic() - count / 1000)

    with serving(tmp_path) as pipes:
        fcntl.fcntl(pipes.source.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
        receive = pipes.recv

        def slowly(size: int) -> bytes:
            data = receive(4000)
            done.wait(len(data) / 200e3)
            return data

        pipes.recv = slowly  # type: ignore[method-assign]
        link = Link(pipes, Timed().frame, Heard().loss)
        heart = tmp_path / "nodes/n0/heartbeat"
        heart.write_text("a 0\n")
        link.request({"do": "watch", "trees": [{"path": RUN, "node": "n0", "deep": True}], "beats": ["n0"]})
        stalled_s, now = 0.0, time.monotonic()
        until = now + 4.0
        while now < until:
            (heart.parent / ".new").write_text(f"a {int(time.monotonic() * 1000)}\n")
            (heart.parent / ".new").replace(heart)
            done.wait(0.1)
            stalled_s += time.monotonic() - now - 0.1
            now = time.monotonic()
        done.set()
        link.close()
    assert max(late[3:]) < 3.0 + stalled_s and len(late) > 10, late
