"""Archive and payload by content; files copied with a cap; the inbox; labels and their locks; leases."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.model.act import Act, Primitive
from orchestrator.model.errors import UsageError
from orchestrator.model.event import Command
from orchestrator.node.files import inbox, label
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.oslayer import processes
from orchestrator.providers import archive, node_files
from orchestrator.system import host_facts


def test_the_archive_is_the_same_for_the_same_sources_and_has_no_code_of_the_orchestrator() -> None:
    assert archive.build() == archive.build()
    names = zipfile.ZipFile(io.BytesIO(archive.build())).namelist()
    assert {"__main__.py", "orchestrator/node/keeper/keeper.py", "orchestrator/model/event.py"} <= set(names)
    assert not [name for name in names if name.startswith(("orchestrator/core", "orchestrator/providers"))]
    assert "orchestrator/rank/runtime/rank_main.py" in names


def test_the_archive_is_placed_once(tmp_path: Path) -> None:
    path, digest = archive.write(tmp_path)
    before = path.stat().st_mtime_ns
    assert archive.write(tmp_path) == (path, digest) and path.stat().st_mtime_ns == before
    assert path.name == f"agent-{archive.agent_hash()}.pyz" and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_payload_is_placed_under_its_content(tmp_path: Path) -> None:
    path = node_files.put_payload(tmp_path, {"a/b.py": b"x = 1\n", "c.txt": b"c"})
    assert node_files.put_payload(tmp_path, {"c.txt": b"c", "a/b.py": b"x = 1\n"}) == path
    assert node_files.put_payload(tmp_path, {"a/b.py": b"x = 2\n", "c.txt": b"c"}) != path
    assert (path / "a/b.py").read_bytes() == b"x = 1\n" and list((path / "a/__pycache__").iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_payload_with_a_broken_file_is_placed_as_it_is(tmp_path: Path) -> None:
    path = node_files.put_payload(tmp_path, {"a.py": b"def ("})
    assert (path / "a.py").read_bytes() == b"def ("


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_a_payload_does_not_leave_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="leaves"):
        node_files.put_payload(tmp_path, {name: b""})


def test_a_tree_is_copied_up_to_the_cap_small_files_first(tmp_path: Path) -> None:
    source = tmp_path / "node"
    (source / "runs/deep").mkdir(parents=True)
    (source / "runs/big").write_bytes(b"b" * 100)
    (source / "runs/deep/small").write_bytes(b"s" * 10)
    os.symlink("/etc/passwd", source / "runs/link")
    whole = node_files.fetch([source], "runs", tmp_path / "whole", 1000)
    cut = node_files.fetch([source], "runs", tmp_path / "cut", 50)
    assert (whole.size, whole.capped) == (110, ()) and not (tmp_path / "whole/link").exists()
    assert (cut.size, cut.capped) == (50, ("big",))
    assert (tmp_path / "cut/deep/small").stat().st_size == 10 and (tmp_path / "cut/big").stat().st_size == 40


def test_of_a_log_that_is_too_long_the_beginning_and_the_end_are_copied(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    lines = [f"line {number:>5}\n" for number in range(2000)]
    (tmp_path / "node/rank-0.log").write_text("".join(lines))
    (tmp_path / "node/records.jsonl").write_text("".join(lines))
    log = node_files.fetch([tmp_path / "node"], "rank-0.log", tmp_path / "log", 11 * 1000)
    text = (tmp_path / "log").read_text()
    assert log.size == 11 * 1000 and log.capped
    assert text.startswith("".join(lines[:500])) and text.endswith("".join(lines[-500:]))
    assert "\nccbed: 11,000 bytes are left out here; CCBED_NODE_FILES_MIB raises the limit\n" in text
    node_files.fetch([tmp_path / "node"], "records.jsonl", tmp_path / "records", 11 * 1000)
    assert (tmp_path / "records").read_text() == "".join(lines[:1000]), "the order of records counts"


@pytest.mark.parametrize("path", ["../other", "/etc/passwd", "link"])
def test_nothing_outside_of_the_node_is_copied(tmp_path: Path, path: str) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "other").write_text("secret")
    os.symlink(tmp_path / "other", tmp_path / "node/link")
    fetched = node_files.fetch([tmp_path / "node"], path, tmp_path / "to", 100)
    assert fetched.reason and not (tmp_path / "to").exists()


def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    assert node_files.fetch([tmp_path], "absent", tmp_path / "to", 100).reason == "not there"


def test_commands_are_taken_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    box = inbox.Inbox(tmp_path)
    for key in ("b", "a", "c/d"):
        inbox.post_command(tmp_path, "r", Command(f="timer", key=key))
    items = list(box.take())
    assert [item.command.key for item in items] == ["b", "a", "c/d"] and items[2].name == "r.c_d.json"
    assert list(box.take()) == []


def test_a_finished_command_is_answered_from_its_outcome(tmp_path: Path) -> None:
    box, command = inbox.Inbox(tmp_path), Command(f="timer", key="a")
    inbox.post_command(tmp_path, "r", command)
    (item,) = box.take()
    box.finish(item, {"type": "ok"})
    inbox.post_command(tmp_path, "r", command)
    (repeated,) = inbox.Inbox(tmp_path).take()
    assert item.outcome is None and repeated.outcome == {"type": "ok"}


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", "1", "null", "\x00", '{"f": "x"}', '{"f": "x", "key": "k", "run": "../r"}', '{"no": "field"}', "[" * 100_000,
        '{"f": "x", "key": "k", "run": "' + "r" * 300 + '"}', '{"f": "x", "key": "k", "run": "a\\u0000b"}',
        '{"f": "x", "key": {"a": 1}}', '{"f": ["x"], "key": "k"}', '{"f": "x", "key": "k", "epoch": "1"}',
        '{"f": "x", "key": "k", "epoch": true}', '{"f": "x", "key": "k", "node": 3}', '{"f": "x", "key": "k", "value": [1]}',
        '{"f": "x", "key": "k", "deadline_s": "soon"}', '{"f": "x", "key": "k", "epoch": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_command_is_moved_aside_once(tmp_path: Path, content: str) -> None:
    box = inbox.Inbox(tmp_path)
    (tmp_path / "inbox/r.k.json").write_text(content)
    (item,) = box.take()
    assert item.problem
    assert list(box.take()) == []
    box.finish(item)
    assert list((tmp_path / "inbox").iterdir()) == []
    assert (tmp_path / "refused/r.k.json").read_text() == content
    inbox.post_command(tmp_path, "r", Command(f="timer", key="after"))
    assert [item.command.key for item in box.take()] == ["after"]
    assert [item.command.key for item in inbox.Inbox(tmp_path).take()] == ["after"]


def test_a_directory_in_an_inbox_is_moved_aside_and_few_are_kept(tmp_path: Path) -> None:
    box = inbox.Inbox(tmp_path)
    (tmp_path / "inbox/folder").mkdir()
    for number in range(inbox.MAX_REFUSED + 5):
        (tmp_path / f"inbox/{number}.json").write_text("{")
        for item in box.take():
            box.finish(item)
    assert list((tmp_path / "inbox").iterdir()) == []
    assert len(list((tmp_path / "refused").iterdir())) <= inbox.MAX_REFUSED + 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    box = inbox.Inbox(tmp_path)
    (tmp_path / "elsewhere").write_text(json.dumps({"f": "x", "key": "k"}))
    os.symlink(tmp_path / "elsewhere", tmp_path / "inbox/r.k.json")
    (item,) = box.take()
    assert "PermissionError" in item.problem


HOLDER = """
import os, sys
from pathlib import Path
from orchestrator.node.files import label; from orchestrator.node.oslayer import processes
from orchestrator.system import host_facts, plain_files
at, pid = Path(sys.argv[1]), os.getpid()
label.take_lock(at)
plain_files.write_json(
    at / label.NODE_LABEL, {"pid": pid, "start": processes.start_time(pid), "boot": host_facts.boot_id()}
)
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


def test_a_label_is_valid_while_its_own_process_holds_the_lock(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        child = int(process.stdout.readline())
        assert label.lock_holder(tmp_path) == process.pid and label.live_label(tmp_path)["pid"] == process.pid
        with pytest.raises(BlockingIOError):
            label.take_lock(tmp_path)
        process.kill()
        process.wait()
        assert processes.find(child) is not None
        assert label.lock_holder(tmp_path) == 0 and label.live_label(tmp_path) == {}
        process.stdin.close()


def test_a_lease_is_found_by_its_successor_and_dropped(tmp_path: Path) -> None:
    stop = Primitive(kind="pause", args={"state": "on"})
    act = Act(inject=(stop,), verify=(stop,), heal=(), verify_heal=(), lease_s=5.0, safety="container")
    lease = Lease(
        id="f0", fault="pause-node", node="n1", key="f/f0/act", run="r", until=1e12, boot=host_facts.boot_id(), act=act
    )
    Leases(tmp_path).arm(lease)
    (tmp_path / "n2.torn.json").write_text('{"boot": "' + host_facts.boot_id() + '"}')
    assert Leases(tmp_path).all() == [lease]
    assert Leases(tmp_path).of("n1", "f0") == [lease] and Leases(tmp_path).of("n2", "f0") == []
    Leases(tmp_path).drop(lease)
    assert Leases(tmp_path).all() == []


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1", 1 << 20), ("400", 400 << 20), ("0", 0), ("-1", 0), ("x", 0), ("9999999", 0)]
)
def test_a_variable_sets_how_much_is_brought_from_a_node(
    monkeypatch: pytest.MonkeyPatch, text: str, size_bytes: int
) -> None:
    monkeypatch.setenv(node_files.LIMIT_MIB, text)
    if size_bytes:
        assert node_files.node_limit() == size_bytes
    else:
        with pytest.raises(UsageError, match="must be a number of MiB"):
            node_files.node_limit()
