"""Of ranks that fail together, the cause is the rank that failed by itself."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import views
from orchestrator.model.event import Clock
from orchestrator.model.run import Run
from orchestrator.views import standing

from . import history
from .verdicts import ask

KILL, ABORT = -9, -6


def _failing(codes: dict[int, int], times: dict[int, float]) -> Run:
    """A script whose ranks leave with these codes, so many seconds after the first rank's exit."""
    run = dataclasses.replace(history.clean(), trial=history.trial(workload="script"))
    run = history.changed(run, "run.end", value={"outcome": "failed", "reason": "a rank failed"})
    start = next(event.at for event in run.history.events if event.f == "rank.exit")
    for rank, code in codes.items():
        at = dataclasses.replace(start, mono=start.mono + times[rank])
        run = history.changed(run, "rank.exit", rank, value={"code": code, "pid": 1000 + rank}, at=at)
    return run


def _cause(run: Run) -> views.Cause:
    cause = views.root_cause(run.history, views.gangs(run.history)[-1])
    assert cause is not None
    return cause


@pytest.mark.parametrize(
    ("codes", "times", "rank"),
    [
        ({0: 1, 1: KILL, 2: 1}, {0: 0.0, 1: 0.3, 2: 0.4}, 1),
        ({0: 1, 1: KILL}, {0: 0.0, 1: 5.0}, 0),
        ({0: 1, 2: 1, 3: 3}, {0: 0.02, 2: 0.03, 3: 0.0}, 3),
        ({0: ABORT, 1: 1}, {0: 0.2, 1: 0.0}, 1),
        ({0: ABORT, 1: KILL}, {0: 0.0, 1: 0.2}, 1),
        ({2: ABORT}, {2: 0.0}, 2),
    ],
    ids=["signal", "too late", "earliest", "abort follows", "kill before abort", "abort alone"],
)
def test_a_death_by_signal_is_the_cause_else_the_earliest_failure(
    codes: dict[int, int], times: dict[int, float], rank: int
) -> None:
    cause = _cause(_failing(codes, times))
    assert (cause.rank, cause.followers) == (rank, tuple(sorted(set(codes) - {rank})))


def test_a_process_that_ccbed_killed_is_no_cause() -> None:
    run = _failing({0: 1, 1: KILL}, {0: 0.0, 1: 0.1})
    stops = [event.type == "ok" and event.node == "n1" for event in run.history.events if event.f == "gang.stop"]
    run = history.changed(run, "gang.stop", stops.index(True), value={"killed": [1001]})
    assert _cause(run).rank == 0


def test_the_cause_stands_in_the_verdict_with_its_code_and_error() -> None:
    run = _failing({0: 1, 3: 3}, {0: 0.1, 3: 0.0})
    run = history.changed(run, "rank.exit", 3, value={"error": "ValueError: no luck"})
    finished = ask(run, "finished")
    assert finished.outcome == "fail"
    assert finished.text == "rank 3 (n3) left with exit code 3: ValueError: no luck; then rank 0 failed"
    assert ask(run, "planned-faults-only").text.startswith("rank 3 on n3 left with code 3")


@pytest.mark.parametrize(("message", "text"), [("no luck", "ValueError: no luck"), ("", "ValueError")])
def test_an_error_without_a_message_is_named_by_its_kind(message: str, text: str) -> None:
    error: Any = SimpleNamespace(data=SimpleNamespace(kind="ValueError", message=message))
    cause = dataclasses.replace(_cause(_failing({0: 1}, {0: 0.0})), error=error)
    assert cause.how == f"left with exit code 1: {text}"


def _reporting(run: Run, rank: int, message: str) -> Run:
    """The rank reports this error in place of its end, one second after the first exit."""
    events = list(run.history.events)
    index = next(i for i, event in enumerate(events) if event.f == "rank.finished" and event.value["rank"] == rank)
    at = dataclasses.replace(events[index].at, mono=_first_exit(history.clean()).mono + 1.0)
    error = {"rank": rank, "kind": "RuntimeError", "message": message}
    events[index] = dataclasses.replace(events[index], f="rank.error", value=error, at=at)
    return history.with_events(run, events)


def _first_exit(run: Run) -> Clock:
    return next(event.at for event in run.history.events if event.f == "rank.exit")


def _losing_a_peer(message: str, leaver_ends: float) -> Run:
    """Rank 2 fails one second after the first exit; rank 1 leaves with code 0 at ``leaver_ends``, the others much later."""
    run = _failing({2: 1}, {2: 1.1})
    for name in ("rank.finished", "rank.exit"):
        for rank, end in {0: 9.0, 1: leaver_ends, 3: 9.0}.items():
            at = dataclasses.replace(_first_exit(run), mono=_first_exit(history.clean()).mono + end)
            run = history.changed(run, name, rank, at=at)
    return _reporting(run, 2, message)


LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1947"


def test_a_rank_that_left_with_code_0_while_others_needed_it_is_the_cause() -> None:
    run = _losing_a_peer(LOST, 0.0)
    assert _cause(run).rank == 1
    text = "rank 1 (n1) left with exit code 0 while other ranks still needed it; then rank 2 failed"
    assert ask(run, "finished").text == text
    assert ask(run, "planned-faults-only").text.startswith("rank 1 on n1 left with exit code 0 while other ranks")


@pytest.mark.parametrize(("message", "end"), [("no space left", 0.0), (LOST, 5.0)], ids=["own error", "left later"])
def test_a_rank_that_left_with_code_0_is_no_cause_of_another_error(message: str, end: float) -> None:
    assert _cause(_losing_a_peer(message, end)).rank == 2


SAVING = ("/job/train.py:49 save", "/job/train.py:80 <module>")
EXITING = ("/usr/lib/python3.11/weakref.py:637 <listcomp>",)
TIMED_OUT = "Timed out waiting 5000ms for send operation to complete"


def _waiting_in_vain(message: str, stacks: dict[str, tuple[str, ...]]) -> Run:
    """Rank 2 fails with ``message``; the stop of the attempt shows ``stacks``."""
    run = _reporting(_failing({2: 1}, {2: 1.1}), 2, message)
    stops = [event.type == "ok" and event.node == "n1" for event in run.history.events if event.f == "gang.stop"]
    return history.changed(run, "gang.stop", stops.index(True), value={"stacks": stacks})


def test_the_rank_for_which_the_others_waited_in_vain_is_named_with_its_line() -> None:
    cause = _cause(_waiting_in_vain(TIMED_OUT, {"0": SAVING, "1": EXITING}))
    assert (cause.rank, cause.peers) == (2, "rank 0 was at train.py:49 (save), in no collective")


def test_the_place_in_the_source_of_torch_is_left_out_of_an_error() -> None:
    """It is longer than a row of the terminal, and would push out what the error says."""
    run = _reporting(
        _failing({2: 1}, {2: 1.1}), 2, "[/__w/gloo/transport/tcp/unbound_buffer.cc:129] Timed out [here:3]"
    )
    assert _cause(run).how.endswith(": Timed out [here:3]")


def test_ranks_that_met_in_different_collectives_are_told_apart() -> None:
    reduce = ("/x/site-packages/torch/distributed/distributed_c10d.py:2900 all_reduce", "/job/train.py:20 step")
    backward = ("/x/site-packages/torch/autograd/graph.py:829 _engine_run_backward", "/job/train.py:21 step")
    run = _waiting_in_vain(
        "[enforce fail at pair.cc:490] op.preamble.length <= op.nbytes. 16 vs 4", {"0": reduce, "1": backward}
    )
    places = "rank 0 in all_reduce at train.py:20, rank 1 in backward at train.py:21"
    assert _cause(run).peers == f"different collectives: {places}"


def test_where_the_failed_ranks_raised_counts_beside_where_the_others_stood() -> None:
    """Rank 1 was ended by C++, because rank 2 had sent it a tensor of another size."""
    odd = ("/x/site-packages/torch/distributed/distributed_c10d.py:2900 all_reduce", "/job/who.py:35 <module>")
    right = ("/x/site-packages/torch/distributed/distributed_c10d.py:2900 all_reduce", "/job/who.py:18 reduce")
    run = _failing({1: -6, 2: 1}, {1: 1.0, 2: 1.1})
    run = _reporting(run, 2, "Connection reset by peer")
    run = history.changed(run, "rank.error", value={"stack": odd})
    stops = [event.type == "ok" and event.node == "n0" for event in run.history.events if event.f == "gang.stop"]
    run = history.changed(run, "gang.stop", stops.index(True), value={"stacks": {"0": right, "3": right}})
    run = history.changed(run, "rank.exit", 1, value={"error": "a peer sent 6,176 bytes where it expected 32"})
    cause = _cause(run)
    assert cause.rank == 1
    assert cause.how == (
        "was ended by SIGABRT: different lines: rank 2 in all_reduce at who.py:35, "
        "ranks 0 and 3 in all_reduce at who.py:18; a peer sent 6,176 bytes where it expected 32"
    )


@pytest.mark.parametrize(
    ("kind", "message", "is_of_peers"),
    [
        ("RuntimeError", TIMED_OUT, True),
        ("RuntimeError", "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation", True),
        ("DistBackendError", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)", True),
        ("DistStoreError", "Timed out after 61 seconds waiting for clients. 2/4 clients joined.", True),
        ("DistStoreError", "wait timeout after 30000ms, keys: /default_pg/0//cpu//0", True),
        ("DistNetworkError", "The client socket has timed out after 60000ms while trying to connect to (h1, 29500).", True),
        ("RuntimeError", "[enforce fail at pair.cc:490] op.preamble.length <= op.nbytes. 16 vs 4", True),
        ("TimeoutError", "The store timed out waiting for 3 ranks", False),
        ("TimeoutError", "timed out", False),
        ("ReadTimeout", "HTTPSConnectionPool(host='data'): Read timed out. (read timeout=10)", False),
        ("TimeoutExpired", "Command 'nvidia-smi' timed out after 10 seconds", False),
        ("RuntimeError", "the download of shard 7 timed out", False),
    ],
)  # fmt: skip
def test_a_time_out_of_the_job_itself_follows_from_no_peer(kind: str, message: str, is_of_peers: bool) -> None:
    assert standing.is_of_peers(kind, message) is is_of_peers


@pytest.mark.parametrize(
    ("message", "stacks"), [("no luck", {"0": SAVING}), (TIMED_OUT, {"2": SAVING}), (TIMED_OUT, {})]
)
def test_a_rank_elsewhere_explains_only_that_others_waited_in_vain(
    message: str, stacks: dict[str, tuple[str, ...]]
) -> None:
    assert _cause(_waiting_in_vain(message, stacks)).peers == ""


def test_a_rank_that_aborted_comes_before_those_that_lost_their_peer() -> None:
    run = _reporting(_failing({1: ABORT, 2: 1}, {1: 1.3, 2: 1.1}), 2, LOST)
    assert _cause(run).rank == 1
    assert _cause(_reporting(_failing({1: ABORT, 2: 1}, {1: 1.3, 2: 1.1}), 2, "no luck")).rank == 2


def test_without_a_failure_there_is_no_cause() -> None:
    run = history.clean()
    assert views.root_cause(run.history, views.gangs(run.history)[-1]) is None
