"""A bed that does not come up says for every node what was wrong, and once each what to do."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.providers import apply

from . import beds

GPUS = 'could not select device driver "" with capabilities: [[gpu]]'


def test_nodes_of_an_engine_are_told_in_plain_words_and_each_fix_once() -> None:
    bed = replace(beds.local(), provider="docker")
    result = apply._failure(bed, [("n0", GPUS), ("n1", GPUS), ("n2", "the moon is wrong")])
    assert result.problems == (
        f"node n0: the node requests GPUs, but the engine has no NVIDIA runtime ({GPUS})",
        f"node n1: the node requests GPUs, but the engine has no NVIDIA runtime ({GPUS})",
        "node n2: the moon is wrong",
    )
    assert [line.split()[0] for line in result.hint.splitlines()] == ["install", "ccbed", "to"]


def test_nodes_that_are_processes_have_their_keepers_log() -> None:
    result = apply._failure(beds.local(), [("n0", "no space left on device")])
    assert result.problems == ("node n0: no space left on device",)
    assert result.hint == "ccbed logs local/keeper\nto continue: ccbed up local.yml     nodes that are ready are kept"
