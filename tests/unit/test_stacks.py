"""Stacks on the terminal: the user's frames and what they call, without frames of ccbed."""

from __future__ import annotations

from orchestrator.cli.render.rank_output import StackFilter

RANK = "/s/beds/local/payloads/9e2c/orchestrator"
WATCHER_THREAD = f"""Thread 0x00007fb3 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "{RANK}/rank/watcher/checkpoints/file_hashes.py", line 77 in _run
  File "/usr/lib/python3.11/threading.py", line 982 in run
"""
MAIN_THREAD = f"""Current thread 0x00007fb4 (most recent call first):
  File "/v/site-packages/torch/autograd/graph.py", line 979 in _engine_run_backward
  File "{RANK}/rank/watcher/install.py", line 102 in entry
  File "/v/site-packages/torch/_tensor.py", line 623 in backward
  File "/data/me/train.py", line 15 in <module>
  File "{RANK}/rank/runtime/program.py", line 64 in execute
  File "/s/agent/agent-1.pyz/orchestrator/node/agent/agent.py", line 233 in _start_ranks
  File "<frozen runpy>", line 88 in _run_code
"""
HEAD = "stack of rank 0, innermost call first (all stacks: nodes/n0/i1-e0/rank-0.log in the bundle):"
MAIN = [
    HEAD,
    '  File "/v/site-packages/torch/autograd/graph.py", line 979 in _engine_run_backward',
    '  File "/v/site-packages/torch/_tensor.py", line 623 in backward',
    '  File "/data/me/train.py", line 15 in <module>',
]


def _lines(text: str) -> list[str]:
    stacks = StackFilter(rank="0", log="nodes/n0/i1-e0/rank-0.log")
    return [*(line for part in text.splitlines() for line in stacks.feed(part)), *stacks.flush()]


def test_only_frames_of_the_user_and_of_libraries_remain() -> None:
    assert _lines(f"step 1\n{WATCHER_THREAD}\n{MAIN_THREAD}step 2") == ["step 1", *MAIN, "step 2"]


def test_the_same_stack_is_printed_once() -> None:
    assert _lines(MAIN_THREAD + MAIN_THREAD) == MAIN
    moved = MAIN_THREAD.replace("line 15", "line 16")
    assert len(_lines(MAIN_THREAD + moved)) == 2 * len(MAIN)


def test_a_thread_of_the_user_and_a_module_of_a_library_as_the_program_are_shown() -> None:
    thread = 'Thread 0x01 (most recent call first):\n  File "/data/me/data.py", line 3 in fetch\n'
    assert _lines(thread) == [HEAD, '  File "/data/me/data.py", line 3 in fetch']
    module = MAIN_THREAD.replace("/data/me/train.py", "/v/site-packages/pkg/train.py")
    assert '  File "/v/site-packages/pkg/train.py", line 15 in <module>' in _lines(module)


def test_lines_of_the_program_that_look_similar_are_untouched() -> None:
    text = 'Thread pool\n  File "x.py", line 3 in f\n\n  indented'
    assert _lines(text) == text.splitlines()
