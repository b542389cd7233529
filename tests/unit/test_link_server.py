"""The helper of a host, through pipes: what it streams, in which order, and what it answers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.hostlink import link_server, tails
from orchestrator.node.hostlink.request_handler import Operations
from orchestrator.providers.ssh.host_requests import Link, RemoteError

from .piped import Heard, serving

RUN = "nodes/n0/runs/R"
TREES = [{"path": "nodes/n0", "node": "n0"}, {"path": RUN, "node": "n0", "deep": True}]
TIMEOUT_S = 600.0


class Served:
    """A link to a helper over ``root``."""

    def __init__(self, root: Path, link: Link, heard: Heard) -> None:
        self.root, self.link, self.heard = root, link, heard

    def ask(self, do: str, body: bytes = b"", **more: object) -> object:
        return self.link.request({"do": do, **more}, body).result(TIMEOUT_S)[0]

    def file(self, name: str, content: bytes = b"") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


#: Ends the naps of hosts.
AWAKE = threading.Event()


def nap(host: str) -> str:
    AWAKE.wait(TIMEOUT_S)
    return host


def size(data: bytes) -> int:
    return len(data)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / RUN).mkdir(parents=True)
    operations: Operations = {"nap": nap, "look": lambda: {"keeper": {}}, "size": size}
    with serving(tmp_path, operations) as pipes:
        heard = Heard()
        link = Link(pipes, heard.frame, heard.loss)
        yield Served(tmp_path, link, heard)
        link.close()


def test_what_was_there_is_told_before_the_answer(served: Served) -> None:
    served.file(f"{RUN}/agent.a.jsonl", b"{}\n")
    served.ask("watch", trees=TREES)
    assert served.heard.file(f"{RUN}/agent.a.jsonl") == b"{}\n"


def test_new_files_and_directories_are_followed(served: Served) -> None:
    served.ask("watch", trees=TREES)
    served.file(f"{RUN}/rank-0.jsonl", b"1\n")
    served.file(f"{RUN}/i1-e0/rank-0.log", b"hello\n")
    served.file(f"{RUN}/i1-e0/empty.log")
    served.heard.wait(lambda heard: heard.file(f"{RUN}/rank-0.jsonl") == b"1\n")
    served.heard.wait(lambda heard: heard.file(f"{RUN}/i1-e0/rank-0.log") == b"hello\n")
    served.heard.wait(lambda heard: any(header.get("file", "").endswith("empty.log") for header, _ in heard.frames))


def test_only_what_is_new_is_sent_to_who_has_the_rest(served: Served) -> None:
    path = served.file(f"{RUN}/agent.a.jsonl", b"1\n2\n")
    have = {f"{RUN}/agent.a.jsonl": [2, tails.end_hash(str(path), 2)]}
    served.ask("watch", trees=TREES, have=have)
    assert [(header["at"], body) for header, body in served.heard.frames if "file" in header] == [(2, b"2\n")]


@pytest.mark.parametrize("have", [[2, "0000"], [99, ""]])
def test_who_has_something_else_gets_the_whole_file(served: Served, have: list[object]) -> None:
    served.file(f"{RUN}/agent.a.jsonl", b"1\n2\n")
    served.ask("watch", trees=TREES, have={f"{RUN}/agent.a.jsonl": have})
    assert [(header["at"], body) for header, body in served.heard.frames if "file" in header] == [(0, b"1\n2\n")]


def test_a_file_that_was_replaced_begins_anew(served: Served) -> None:
    path = served.file(f"{RUN}/i1-e0/env.json", b'{"a":1}')
    served.ask("watch", trees=TREES)
    served.ask("sync")
    served.file(f"{RUN}/i1-e0/.new", b'{"a":2}').replace(path)
    served.ask("sync")
    assert served.heard.file(f"{RUN}/i1-e0/env.json") == b'{"a":2}'


def test_links_and_what_is_no_output_are_left_alone(served: Served, tmp_path: Path) -> None:
    secret = served.file("secret.jsonl", b"secret\n")
    (served.root / RUN / "planted.jsonl").symlink_to(secret)
    served.file("nodes/n0/inbox/a.jsonl", b"1\n")
    served.file(f"{RUN}/.hidden.jsonl", b"1\n")
    served.ask("watch", trees=TREES)
    served.ask("sync")
    assert [header["file"] for header, _ in served.heard.frames if "file" in header] == []


def test_an_event_overtakes_bulk(served: Served) -> None:
    served.file(f"{RUN}/i1-e0/rank-0.log", os.urandom(40 << 20))
    receive, events = served.heard.frame, list[Path]()

    def write_event(header: Mapping[str, Any], body: bytes) -> None:
        """While this thread writes it, nothing of the log is acknowledged."""
        if header.get("file", "").endswith("rank-0.log") and not events:
            events.append(served.file(f"{RUN}/agent.a.jsonl", b"1\n"))
        receive(header, body)

    served.link._handle = write_event
    served.ask("watch", trees=TREES)
    served.heard.wait(lambda _: events)
    served.ask("sync")
    names = [header["file"] for header, _ in served.heard.frames if "file" in header]
    assert names.index(f"{RUN}/agent.a.jsonl") < len(names) - 20, "most of the log came after it"


def test_bulk_ends_at_its_cap_and_says_so(served: Served) -> None:
    path = served.file(f"{RUN}/i1-e0/rank-0.log", b"x" * 1000)
    trees = [{"path": RUN, "node": "n0", "deep": True, "cap": 600}]
    served.file(f"{RUN}/agent.a.jsonl", b"1\n" * 1000)
    served.ask("watch", trees=trees)
    response = served.ask("sync", paths=[RUN])
    assert len(served.heard.file(f"{RUN}/i1-e0/rank-0.log")) == 600 < path.stat().st_size
    assert len(served.heard.file(f"{RUN}/agent.a.jsonl")) == 2000, "events know no cap"
    assert isinstance(response, dict) and response[RUN]["capped"] == [f"{RUN}/i1-e0/rank-0.log"]


def test_heartbeats_are_told_when_they_change(served: Served) -> None:
    served.file("nodes/n0/heartbeat", b"abc 1\n")
    served.ask("watch", trees=TREES, beats=["n0"])
    served.heard.wait(lambda heard: ({"beats": {"n0": ["abc", 1]}}, b"") in heard.frames)
    served.file("nodes/n0/heartbeat", b"abc 2\n")
    served.heard.wait(lambda heard: ({"beats": {"n0": ["abc", 2]}}, b"") in heard.frames)


def test_long_operations_hold_up_nothing(served: Served) -> None:
    slow = served.link.request({"do": "op", "op": "nap", "args": {"host": "h1"}})
    served.ask("ping")
    assert not slow.done()
    AWAKE.set()
    assert slow.result(TIMEOUT_S) == ("h1", b"")


def test_operations_answer_their_value_or_their_sentence(served: Served) -> None:
    assert served.ask("op", op="look", args={}) == {"keeper": {}}
    assert served.ask("op", b"12345", op="size", args={}, raw="data") == 5
    with pytest.raises(RemoteError, match="Unknown host operation gone"):
        served.ask("op", op="gone", args={})
    with pytest.raises(RemoteError, match="Unknown request sing"):
        served.ask("sing")


def test_files_are_written_below_the_bed_alone(served: Served) -> None:
    path = served.root / "nodes/n0/inbox/R.k.json"
    served.ask("write", b"{}", path=str(path))
    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o600
    for target in ("/tmp/elsewhere/x", f"{served.root}/../x"):
        with pytest.raises(RemoteError, match="outside of the bed"):
            served.ask("write", b"{}", path=target)


def test_a_payload_is_one_round_trip(served: Served) -> None:
    files = [["orchestrator/a.py", 6], ["user/b", 5]]
    path = Path(str(served.ask("put", b"x = 1\nhello", files=files)))
    assert path.parent == served.root / "payloads"
    assert (path / "orchestrator/a.py").read_bytes() == b"x = 1\n"
    assert (path / "user/b").read_bytes() == b"hello"
    with pytest.raises(RemoteError, match="leaves"):
        served.ask("put", b"x", files=[["../a", 1]])


def test_the_wheel_is_held_until_the_link_ends(tmp_path: Path) -> None:
    content = {"run": "R1", "owner": "ann@desk", "pid": 7, "token": "t1"}
    with serving(tmp_path) as first, serving(tmp_path) as second:
        entry, two = (Link(pipes, Heard().frame, Heard().loss) for pipes in (first, second))
        entry.request({"do": "drive", "content": content}).result(TIMEOUT_S)
        assert json.loads((tmp_path / "run.lock").read_text())["run"] == "R1"
        with pytest.raises(RemoteError, match=r"run R1 of ann@desk \(pid 7\) drives this bed"):
            two.request({"do": "drive", "content": {**content, "token": "t2"}}).result(TIMEOUT_S)
        entry.request({"do": "leave"}).result(TIMEOUT_S)
        two.request({"do": "drive", "content": {**content, "token": "t2"}}).result(TIMEOUT_S)
        entry.close()
        two.close()


def test_whoever_waits_hears_of_the_loss(tmp_path: Path) -> None:
    release = threading.Event()
    with serving(tmp_path, {"wait": release.wait}) as pipes:
        heard = Heard()
        link = Link(pipes, heard.frame, heard.loss)
        waiting = link.request({"do": "op", "op": "wait", "args": {}})
        link.close("cut")
        with pytest.raises(ConnectionError, match="cut"):
            waiting.result(TIMEOUT_S)
        assert heard.lost == ["cut"]
        with pytest.raises(ConnectionError):
            link.request({"do": "ping"}).result(TIMEOUT_S)
        release.set()


@pytest.mark.parametrize("stood_still_s", [0.0, 3600.0])
def test_silence_ends_the_helper_and_time_in_which_its_machine_stood_still_does_not(
    served: Served, monkeypatch: pytest.MonkeyPatch, stood_still_s: float
) -> None:
    """A machine that is suspended wakes with a clock that is ahead, and with requests that nobody has read yet."""
    ahead_s = [stood_still_s]
    monkeypatch.setattr(link_server, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[-1]))
    served.ask("ping")
    if stood_still_s:
        ahead_s.append(2 * stood_still_s)
        count = len(served.heard.frames)
        served.heard.wait(lambda heard: len(heard.frames) > count + 2)
        assert served.ask("sync") == {"": {"files": 0, "there": True, "capped": [], "unread": []}}
    monkeypatch.setattr(link_server, "SILENCE_S", 0.0)
    served.heard.wait(lambda heard: heard.lost == ["the helper on the host ended"])
