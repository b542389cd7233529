"""What reads the output of nccl-tests reads ours: small readers, each after the source that is named in its docstring."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import nccl
from orchestrator.collectives.plugins.reports import collectives as report
from orchestrator.model.run import Run

from . import collective_runs


@pytest.fixture(scope="module")
def run() -> Run:
    return collective_runs.reference()


@pytest.fixture(scope="module")
def made(run: Run) -> dict[str, str]:
    return {name: text.decode() for name, text in report.render(run).items() if name.startswith("nccl-tests")}


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


# --- NVIDIA/nccl-tests, tools/analyze_perf_json.py: statistics, stragglers, spikes and nodes of each result ---------------


def own_analyser(data: dict[str, Any], placement: str) -> list[dict[str, Any]]:
    """As its print_stats_table, print_straggler, print_spikes and print_nodes take the fields (version 3 of the file)."""
    messages = []
    hosts = [device["hostname"] for device in data["config"]["devices"]]
    for result in data["results"]:
        entries = result.get(placement, {})
        rows = entries.get("per_process_max_times_us", [])
        highest = [max(row[i] for row in rows) for i in range(min(map(len, rows)))]
        spikes = [
            (i, [p for p, row in enumerate(rows) if row[i] > 1.5 * entries["avg_us"]])
            for i in range(len(highest))
            if highest[i] > 1.5 * entries["avg_us"]
        ]
        messages.append(
            {
                "line": f"{result['size']:14d} {entries['avg_us']:10.1f} {entries['min_us']:10.1f} {entries['max_us']:10.1f} "
                f"{entries['p99_us']:10.1f} {entries['cv_pct']:6.1f}%",
                "consistent": all(abs(a - b) < 0.001 for a, b in zip(entries["times_us"], highest, strict=True)),
                "slowest": max(range(len(rows)), key=lambda p: statistics.mean(rows[p])),
                "spikes": spikes,
                "nodes": {host: statistics.mean(row) for host, row in zip(hosts, rows, strict=True)},
                "first": entries["times_us"][0] / statistics.mean(entries["times_us"][1:]),
            }
        )
    return messages


def test_its_own_analyser_finds_statistics_stragglers_spikes_and_nodes(made: dict[str, str]) -> None:
    data = json.loads(made["nccl-tests.json"])
    assert (data["version"], data["config"]["per_iter_skip"], data["config"]["iterations"]) == (3, 0, 20)
    message = own_analyser(data, "in_place_per_iter")
    assert len(message) == 9 and all(entry["consistent"] for entry in message)
    assert set(message[0]["nodes"]) == {"n0", "n1", "n2", "n3"}
    stopped = message[6]
    assert [i for i, _ in stopped["spikes"]] == [4], "rank 2 stood still in trial 5"
    assert message[7]["spikes"] == []


def test_percentiles_are_taken_as_nccl_tests_takes_them(made: dict[str, str]) -> None:
    """src/util.cu, computeIterStats: p50 is the upper middle, p95 and p99 by nearest rank, stdev that of a population."""
    for result in json.loads(made["nccl-tests.json"])["results"]:
        entries = result["in_place_per_iter"]
        ordered = sorted(entries["times_us"])
        assert (entries["p50_us"], entries["p95_us"], entries["p99_us"]) == (ordered[10], ordered[18], ordered[19])
        assert entries["stdev_us"] == pytest.approx(statistics.pstdev(ordered), abs=1e-5)
        assert entries["cv_pct"] == pytest.approx(100 * entries["stdev_us"] / entries["avg_us"], abs=1e-5)


#: src/util.cu: what writes each field of a result (jsonSize_t, jsonStr, jsonDouble: a number or "nan", jsonInt).
TYPES = {
    "size": int,
    "count": int,
    "type": str,
    "redop": str,
    "root": str,
    "actual_iterations": int,
    "experiment_name": str,
}
#: writeDeviceReport and jsonRankInfo.
CONFIG = {
    "nthreads": int, "ngpus": int, "minimum_bytes": int, "maximum_bytes": int, "step_factor": int, "warmup_iters": int,
    "iterations": int, "aggregated_iterations": int, "validation": int, "graph": int, "blocking_collectives": str,
    "per_iter_timing": str, "per_iter_skip": int, "parallel_init": str, "devices": list,
}  # fmt: skip
DEVICE = {
    "rank": int, "group": int, "pid": int, "hostname": str, "device": int, "device_hex": str, "device_info": str,
}  # fmt: skip


def kinds(value: dict[str, Any]) -> dict[str, type]:
    return {name: type(entry) for name, entry in value.items()}


def test_names_types_and_nesting_are_those_of_its_writer(made: dict[str, str]) -> None:
    data = json.loads(made["nccl-tests.json"])
    assert kinds(data["config"]) == CONFIG
    assert [kinds(device) for device in data["config"]["devices"]] == [DEVICE] * 4
    for result in data["results"]:
        assert {name: type(result[name]) for name in TYPES} == TYPES and len(result["root"]) == 6
        assert kinds(result["in_place"]) == dict.fromkeys(("time", "alg_bw", "bus_bw", "nwrong"), float)
        assert result["out_of_place"] is None and "out_of_place_per_iter" not in result, (
            "what is not measured has no figure"
        )
    assert kinds(data["out_of_bounds"]) == {"count": int, "okay": str}
    assert kinds(data["average_bus_bandwidth"]) == {"bandwidth": float, "okay": str}


# --- NVIDIA/cloudai, workloads/nccl_test/performance_report_generation_strategy.py -----------------------------------------


def cloudai(text: str) -> list[list[str]]:
    """Its can_handle_directory, then _parse_data_rows: lines that begin with a digit and have 13 columns."""
    head = r"\b(size\s+count\s+type\s+redop\s+root\s+time\s+algbw\s+busbw\s+#wrong\s+time\s+algbw\s+busbw\s+#wrong)\b"
    assert re.search(r"out-of-place|in-place", text) and re.search(head, text, re.IGNORECASE)
    rows = [re.split(r"\s+", line.strip()) for line in text.splitlines() if re.match(r"^\d", line.strip())]
    return [row for row in rows if len(row) == 13]


def test_readers_of_its_text_find_every_size_of_an_algorithm(run: Run, made: dict[str, str]) -> None:
    assert sorted(made) == [
        "nccl-tests.json", "nccl-tests/all_reduce_perf-library.txt",
        "nccl-tests/all_reduce_perf-recursive-doubling.txt", "nccl-tests/all_reduce_perf-ring.txt",
    ]  # fmt: skip
    text = made["nccl-tests/all_reduce_perf-ring.txt"]
    rows = cloudai(text)
    assert [row[:5] for row in rows] == [
        ["4096", "1024", "float", "sum", "-1"], ["131072", "32768", "float", "sum", "-1"],
        ["971048", "242762", "float", "sum", "-1"],
    ]  # fmt: skip
    own = [row for row in measured(run).rows if row.case.algorithm == "ring"]
    for cells, row in zip(rows, own, strict=True):
        assert row.cct is not None and cells[5:9] == ["N/A"] * 4
        assert float(cells[9]) == pytest.approx(row.cct.mean * 1e6, rel=1e-4)
        assert float(cells[11]) == pytest.approx(row.busbw, abs=6e-5), "not 0.01, which says nothing"
        assert cells[12] == "0"


def test_what_was_not_verified_is_said_as_it_says_it(run: Run) -> None:
    result = measured(run)
    blind = replace(
        result,
        setting=replace(result.setting, verify=False),
        rows=tuple(replace(row, wrong=None) for row in result.rows),
    )
    assert all(row[12] == "N/A" for row in cloudai(nccl.texts(blind)["all_reduce_perf-ring.txt"]))
    assert json.loads(nccl.document(run, blind))["results"][0]["in_place"]["nwrong"] is None


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (12.3456, 7, "  12.35"), (123456.7, 7, "123457"), (99999.94, 7, "99999.9"), (1.5e9, 7, "1.5e+09"),
        (0.01172, 6, "0.0117"), (0.5, 7, "0.50000"), (412.5, 6, "412.50"), (0.0, 6, "0.0000"),
    ],
)  # fmt: skip
def test_figures_fit_their_columns(value: float, width: int, text: str) -> None:
    result = nccl.fitted(value, width)
    assert result.strip() == text.strip() and len(result) <= width
