"""Whose a process is: marks, sessions and descent, from what /proc says."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from orchestrator.node.oslayer import processes
from orchestrator.node.oslayer.processes import Process


def _process(pid: int, *, ppid: int = 1, session: int = 0, marked: str = "") -> Process:
    return Process(pid=pid, ppid=ppid, session=session or pid, start=pid * 10, state="S", tag=marked)


def test_a_name_with_brackets_and_spaces_does_not_confuse_the_fields() -> None:
    text = b"42 (a (b) c) d) T 7 42 40 " + b" ".join(b"%d" % n for n in range(7, 30))
    process = processes.parse_stat(text)
    assert (process.pid, process.state, process.ppid, process.session, process.start) == (42, "T", 7, 40, 22)


def test_a_process_belongs_by_mark_by_session_or_by_descent() -> None:
    candidates = [
        _process(1000),
        _process(1001, ppid=1000, marked="b-1/n1/aa"),
        _process(1002, ppid=1001),
        _process(1003, ppid=1002),
        _process(1004, session=1000),
        _process(1005, marked="b-1/n10/aa"),
        _process(1006, marked="b-2/n1/aa"),
        _process(1007),
    ]
    chosen = {process.pid for process in processes.select(candidates, "b-1/n1/", {1000})}
    assert chosen == {1000, 1001, 1002, 1003, 1004}
    assert {process.pid for process in processes.ProcessIndex(candidates).select("b-1/n1/", {1000})} == chosen
    assert {process.pid for process in processes.select(candidates, "b-1/n1/", spare=[1002])} == {1001, 1003}


def test_orphans_that_init_took_are_not_followed_to_each_other() -> None:
    candidates = [_process(1, ppid=0, marked="b-1/n1/aa"), _process(1007)]
    assert [process.pid for process in processes.select(candidates, "b-1/n1/")] == [1]
    assert [process.pid for process in processes.ProcessIndex(candidates).select("b-1/n1/")] == [1]


def test_an_index_selects_the_same_processes() -> None:
    own = os.getpid()
    candidates = [
        _process(1000, marked="b-1/n1/aa/bb"),
        _process(1001, ppid=1000, session=1000, marked="b-1/n2/aa"),
        _process(1002, ppid=1001, marked="b-1/n1"),
        _process(own, ppid=1002, marked="b-1/n1/aa"),
        _process(1003, ppid=own),
        _process(1004, marked=""),
    ]
    index = processes.ProcessIndex(candidates)
    for prefix, sessions in (("b-1/n1/", {1000}), ("b-1/n1/", set()), ("b-1/n2/", {1004}), ("b-1/n3/", {1001})):
        selected = {process.pid for process in processes.select(candidates, prefix, sessions)}
        assert {process.pid for process in index.select(prefix, sessions)} == selected, (prefix, sessions)


def test_another_process_with_the_same_pid_is_not_taken_for_it() -> None:
    own = processes.find(os.getpid())
    assert own is not None
    assert processes.is_alive(own.pid, own.start)
    assert not processes.is_alive(own.pid, own.start + 1)
    other = Process(pid=own.pid, ppid=1, session=1, start=own.start + 1, state="S")
    assert processes.send_signal([other], 0) == []
    assert processes.live_sessions([(own.pid, own.start + 1)]) == set()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"A=1\0CCBED_NODE=b-1/n1/aa     \0B=2\0", "b-1/n1/aa"),
        (b"CCBED_NODE=b-1/n1/aa\0", "b-1/n1/aa"),
        (b"NOT_CCBED_NODE=b-1/n1/aa\0", ""),
        (b"A=CCBED_NODE=x\0", ""),
        (b"", ""),
    ],
)
def test_the_mark_is_read_from_the_bytes_of_an_environment(environ: bytes, expected: str) -> None:
    assert processes.tag_in_environment(environ) == expected


def test_beds_of_the_same_name_in_two_directories_have_different_marks() -> None:
    assert processes.bed_tag("lab", "/a") != processes.bed_tag("lab", "/b")


def test_a_mark_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        processes.node_tag("b" * 200, "n" * 50, "aa")


def test_a_process_can_change_the_mark_that_others_see_and_its_children_inherit() -> None:
    code = """
import os, subprocess, sys
from orchestrator.node.oslayer import processes
processes.set_own_tag("b-1/n1/bb")
own = open("/proc/self/environ", "rb").read()
child = subprocess.run(["printenv", "CCBED_NODE"], capture_output=True, text=True).stdout
assert processes.tag_in_environment(own) == "b-1/n1/bb", own
assert child == "b-1/n1/bb\\n", child
"""
    env = {
        **os.environ,
        processes.TAG_VARIABLE: processes.pad_tag("b-1/keeper/starting"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_an_environment_without_room_is_not_written_over() -> None:
    code = "from orchestrator.node.oslayer import processes; processes.set_own_tag('b-1/n1/bb')"
    env = {**os.environ, processes.TAG_VARIABLE: "short", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode and "too short" in done.stderr


def test_a_killed_process_is_exiting_as_soon_as_it_runs_no_more_code() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert not processes.is_exiting(child.pid)
        child.kill()
        until = time.monotonic() + 600
        while not processes.is_exiting(child.pid):
            assert time.monotonic() < until
        process = processes.find(child.pid)
        assert process is not None, "it is not reaped yet"
    assert not processes.is_exiting(child.pid), "there is no such process any more"


@pytest.mark.parametrize(
    ("count", "flags", "is_exiting"), [(2, (4, 4), True), (2, (4, 0), False), (3, (4, 4), False), (2, (4, None), False)]
)
def test_every_thread_must_be_exiting_and_listed(
    count: int, flags: tuple[int | None, ...], is_exiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of threads is cut short when one ends while the list is read, and a thread's file can be gone."""
    stats = {f"/proc/7/task/{thread}/stat": _stat(value, 2) for thread, value in enumerate(flags) if value is not None}
    files = {**stats, "/proc/7/stat": _stat(4, count)}
    monkeypatch.setattr(processes, "_read", lambda path, limit: files.get(path, b""))
    monkeypatch.setattr(os, "listdir", lambda path: [str(thread) for thread in range(len(flags))])
    assert processes.is_exiting(7) is is_exiting


def _stat(flags: int, threads: int) -> bytes:
    return b"7 (a) S 1 7 7 0 -1 %d 0 0 0 0 0 0 0 0 20 0 %d 0 99" % (flags, threads)
