"""Classes of metrics: the shipped table, and a project's own file that replaces and adds some."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.model.errors import UsageError
from orchestrator.nightly import baselines, classes


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("gemm float32", "rate"), ("copy memory", "rate"), ("copy to device", "network"), ("disk work write", "disk"),
        ("disk work fsync p50", "latency"), ("all-reduce ring float32 sum 4 MiB busbw", "network"),
        ("all-reduce ring float32 sum 4 KiB busbw", "latency"), ("all-reduce ring float32 sum 4 MiB time p50", "time"),
        ("send-recv direct 1 MiB time p99", "latency"), ("link beta", "network"), ("link alpha", "shown"), ("ttr", "time"),
        ("clock offset bound", "shown"), ("cpu stolen", "shown"), ("nic drops", "errors"), ("ecc corrected cuda:0", "errors"),
        ("cpu throttled by heat", "errors"), ("pcie width cuda:0", "parts"),
    ],
)  # fmt: skip
def test_each_metric_has_a_class(metric: str, name: str) -> None:
    assert classes.of(metric, classes.read()).name == name


def test_small_messages_and_latencies_never_fail() -> None:
    kind = classes.of("all-reduce ring float32 sum 4 KiB busbw", classes.read())
    assert (kind.least, kind.most) == (0.3, "warn")


def test_a_project_replaces_a_class_and_adds_one_before_the_others(tmp_path: Path) -> None:
    (tmp_path / classes.FILE).write_text(
        'classes:\n  disk: {metrics: ["disk *"], least: 40%}\n  mine: {metrics: [gemm float32], least: 2%, most: warn}\n'
    )
    known = classes.read(tmp_path)
    assert classes.of("gemm float32", known) == classes.MetricClass(
        name="mine", metrics=("gemm float32",), least=0.02, most="warn"
    )
    assert classes.of("disk work write", known).least == 0.4
    assert classes.of("gemm bfloat16", known).name == "rate"
    assert baselines.read_all(tmp_path) == (), "the file of classes is no baseline"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "classes: {a: {metrics: [x], least: 5}}",
            "classes.yml:1: classes.a.least: must be a share such as 10% or 0.1 (got 5)",
        ),
        ("classes: {a: {least: 5%}}", "classes.a.metrics: is missing"),
        ("classes: {a: {metrics: [x], most: explode}}", "classes.a.most"),
        ("classes: {a: 3}", "must be a mapping with `metrics`"),
        ("kinds: {}", "unknown key"),
        ("[]", "must be a mapping with `classes`"),
    ],
)
def test_a_mistake_has_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / classes.FILE).write_text(text + "\n")
    with pytest.raises(UsageError) as raised:
        classes.read(tmp_path)
    assert problem in "\n".join(raised.value.problems)
