"""Nodes that a night accuses: evidence, the call of a command, quarantine after two recorded nights."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import UsageError
from orchestrator.nightly import judging, night_files
from orchestrator.nightly.culprits import hook
from orchestrator.nightly.identity import Nodes
from orchestrator.nightly.night_judgement import Judged, NightJudgement
from orchestrator.nightly.records import Finding
from orchestrator.nightly.suite import Cell, MetricRule, Night

from .night_bundles import figure, write_night

FLOOR = Cell(name="gemm", trial="probe", rules=(MetricRule(metric="gemm", floor=90.0),))
NODES = ("n0", "n1", "n2", "n3")
BED = Nodes({node: f"host-{node}" for node in NODES})


def rates(*slow: str) -> list[list[dict[str, Any]]]:
    return [[figure("gemm", 80.0 if node in slow else 100.0, "TFLOP/s", "higher", node=node) for node in NODES]]


def night_of(tmp_path: Path, number: int, *slow: str) -> tuple[Path, Night, NightJudgement]:
    directory = write_night(tmp_path, number, {"gemm": rates(*slow)}, nodes=NODES, cells=[FLOOR])
    return directory, night_files.read_night(directory), judging.judge(directory, ())


def sweep(*labels: str, rounds: int = 2) -> NightJudgement:
    finding = Finding(gate="pairs", outcome="warn", text="link beta: a part is slower", culprits=labels)
    judged = Judged(finding=finding, state="warn", runs=tuple(f"runs/{number}" for number in range(rounds)))
    return NightJudgement(outcome="warn", exit=0, sentence="", findings=(judged,))


def test_a_sweep_of_one_round_accuses_nobody(tmp_path: Path) -> None:
    _, night, _ = night_of(tmp_path, 1)
    assert [hook.accused(night, sweep("node n1", rounds=rounds)) == () for rounds in (1, 2)] == [True, False]


def test_a_node_that_failed_is_accused_with_the_runs_of_its_findings(tmp_path: Path) -> None:
    _, night, judgement = night_of(tmp_path, 1, "n2")
    [culprit] = hook.accused(night, judgement)
    assert (culprit.node, culprit.host, len(culprit.runs)) == ("n2", "host-n2", 1)
    assert culprit.reason == "n2: gemm 80 TFLOP/s is worse than its floor 90"
    assert hook.accused(night, night_of(tmp_path / "clean", 1)[2]) == ()


@pytest.mark.parametrize(
    ("label", "nodes"),
    [("node n1", ["n1"]), ("egress n3", ["n3"]), ("link n0 <-> n1", []), ("direction n0 -> n1", []), ("group 0", [])],
)
def test_a_sweep_accuses_a_node_but_neither_end_of_a_link(tmp_path: Path, label: str, nodes: list[str]) -> None:
    _, night, _ = night_of(tmp_path, 1)
    assert [culprit.node for culprit in hook.accused(night, sweep(label))] == nodes


def test_the_evidence_has_the_night_and_the_runs_concerned(tmp_path: Path) -> None:
    directory, night, judgement = night_of(tmp_path, 1, "n2")
    night_files.write_judgement(directory, judgement)
    [culprit] = hook.accused(night, judgement)
    with tarfile.open(hook.write_evidence(directory, culprit)) as archive:
        names = {name.removeprefix(f"{directory.name}/") for name in archive.getnames()}
    assert {"night.json", "night.jsonl", "findings.json", "manifest-sha256.txt"} <= names
    assert {f"runs/{culprit.runs[0]}/metrics.jsonl", f"runs/{culprit.runs[0]}/nodes/n2/system.json"} <= names


def test_the_call_is_printed_and_made_only_when_it_is_applied(tmp_path: Path) -> None:
    directory, night, judgement = night_of(tmp_path, 1, "n2")
    script = f"import sys; open({str(tmp_path / 'called')!r}, 'w').write(' '.join(sys.argv[1:]))"
    command = f'"{sys.executable}" -c "{script}" {{node}} {{host}} {{evidence}}'
    [line] = hook.handle(directory, night, judgement, command, is_applied=False)
    assert line.startswith("n2: would call: ")
    assert not (tmp_path / "called").exists()
    [line] = hook.handle(directory, night, judgement, command, is_applied=True)
    assert line.startswith("n2: called ")
    node, host, evidence = (tmp_path / "called").read_text().split()
    assert (node, host, Path(evidence).name) == ("n2", "host-n2", "n2.tar.gz")


def test_no_shell_reads_what_a_night_says(tmp_path: Path) -> None:
    _, night, _ = night_of(tmp_path, 1)
    culprit = hook.Accused(node="n2", host="h; rm -rf /", reason="$(reboot)", runs=())
    words = hook.argv("drain '{host}' Reason={reason}", culprit, night, tmp_path)
    assert words == ["drain", "h; rm -rf /", "Reason=$(reboot)"]


def test_a_call_that_fails_or_hangs_is_a_sentence(tmp_path: Path) -> None:
    assert hook.call([str(tmp_path / "absent")]).endswith("No such file or directory")
    with pytest.raises(UsageError, match="cannot be split"):
        hook.check("drain 'x")


def offend(tmp_path: Path, number: int) -> quarantine.Quarantine:
    _, night, judgement = night_of(tmp_path / str(number), number, "n2")
    accused = [(culprit.node, culprit.reason) for culprit in hook.accused(night, judgement)]
    quarantine.record(tmp_path, night, accused)
    return quarantine.record(tmp_path, night, accused)  # judged again


def test_the_second_recorded_night_puts_a_node_into_quarantine(tmp_path: Path) -> None:
    assert offend(tmp_path, 3).nodes(BED) == {}
    nodes = offend(tmp_path, 5).nodes(BED)
    assert {name: entry.since.number for name, entry in nodes.items()} == {"n2": 5}
    assert quarantine.read(tmp_path).nodes(BED, before=5) == {}  # as it was when that night began
    [line] = quarantine.lines(tmp_path, BED)
    assert "n2 is set aside since 2026-01-05" in line


def test_two_offences_far_apart_are_no_quarantine(tmp_path: Path) -> None:
    offend(tmp_path, 1)
    assert offend(tmp_path, 20).nodes(BED) == {}


def test_a_casual_night_is_no_offence(tmp_path: Path) -> None:
    offend(tmp_path, 1)
    directory, _, judgement = night_of(tmp_path / "casual", 2, "n2")
    document = json.loads((directory / "night.json").read_text())
    (directory / "night.json").write_text(json.dumps({**document, "number": 0}))
    night = night_files.read_night(directory)
    accused = [(culprit.node, culprit.reason) for culprit in hook.accused(night, judgement)]
    assert len(quarantine.record(tmp_path, night, accused).offences) == 1


def test_a_released_node_begins_anew(tmp_path: Path) -> None:
    offend(tmp_path, 1)
    offend(tmp_path, 2)
    quarantine.end(tmp_path, (), ["n2"], BED)
    assert quarantine.lines(tmp_path, BED) == ()
    assert offend(tmp_path, 3).nodes(BED) == {}
    assert list(offend(tmp_path, 4).nodes(BED)) == ["n2"]
    with pytest.raises(UsageError, match="n1 is not set aside"):
        quarantine.end(tmp_path, (), ["n1"], BED)


def test_quarantine_stays_with_the_host_when_the_bed_gives_its_name_to_another_one(tmp_path: Path) -> None:
    offend(tmp_path, 1)
    known = offend(tmp_path, 2)
    swapped = Nodes({"n0": "host-n0", "n1": "host-n2", "n2": "host-n3"})
    assert quarantine.reasons(tmp_path, swapped).keys() == {"n1"}
    without = Nodes({"n2": "host-n3"})
    assert quarantine.reasons(tmp_path, without) == {}
    assert quarantine.lines(tmp_path, without) == ()
    assert list(known.nodes(without)) == ["n2@host-n2"], "it can still be shown and released"


def test_a_release_is_of_the_host(tmp_path: Path) -> None:
    offend(tmp_path, 1)
    offend(tmp_path, 2)
    swapped = Nodes({"n1": "host-n2", "n2": "host-n3"})
    quarantine.end(tmp_path, (), ["n1"], swapped)
    assert quarantine.reasons(tmp_path, BED) == quarantine.reasons(tmp_path, swapped) == {}
    offend(tmp_path, 3)
    offend(tmp_path, 4)
    assert quarantine.reasons(tmp_path, BED).keys() == {"n2"}


def test_offences_of_two_hosts_under_one_name_are_no_quarantine(tmp_path: Path) -> None:
    """As on a Slurm bed, where each job gives n2 to another host."""
    for number in (1, 2):
        hosts = {node: f"job-{number}-{node}" for node in NODES}
        directory = write_night(tmp_path / str(number), number, {"gemm": rates("n2")}, nodes=NODES, hosts=hosts)
        quarantine.record(tmp_path, night_files.read_night(directory), [("n2", "slow")])
        assert quarantine.reasons(tmp_path, Nodes(hosts)) == {}


def test_several_nodes_of_a_host_are_known_by_their_names(tmp_path: Path) -> None:
    hosts = dict.fromkeys(NODES, "localhost")
    for number in (1, 2):
        directory = write_night(tmp_path / str(number), number, {"gemm": rates("n2")}, nodes=NODES, hosts=hosts)
        quarantine.record(tmp_path, night_files.read_night(directory), [("n2", "slow")])
    assert quarantine.reasons(tmp_path, Nodes(hosts)).keys() == {"n2"}
    assert quarantine.reasons(tmp_path, Nodes({"n0": "localhost"})) == {}


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has neither is_alone nor last_number, and names nodes in its releases."""
    offences = [
        {"node": node, "host": f"host-{node}", "night": f"night-{number}", "number": number, "reason": "slow"}
        for node in ("n1", "n2") for number in (4, 5)
    ]  # fmt: skip
    (tmp_path / quarantine.FILE).write_text(json.dumps({"offences": offences, "released": {"n1": 5}}))
    assert quarantine.reasons(tmp_path, BED).keys() == {"n2"}
    assert quarantine.reasons(tmp_path, Nodes({"n2": "other"})) == {}
    assert quarantine.assign_number(tmp_path) == 6


def test_the_numbers_of_nights_go_on_whatever_the_directory_of_runs_has(tmp_path: Path) -> None:
    assert [quarantine.assign_number(tmp_path), quarantine.assign_number(tmp_path, least=7)] == [1, 7]
    offend(tmp_path, 7)
    assert quarantine.assign_number(tmp_path) == 8, "a night that has its number and no offence keeps it"
    quarantine.record(tmp_path, night_of(tmp_path / "next", 8)[1], [("n2", "slow")])
    assert quarantine.read(tmp_path).nodes(BED, before=quarantine.assign_number(tmp_path)).keys() == {"n2"}


def test_a_node_in_quarantine_fails_no_further_night_and_another_does(tmp_path: Path) -> None:
    directory, _, _ = night_of(tmp_path, 3, "n2")
    judgement = judging.judge(directory, (), (), ["n2"])
    assert (judgement.outcome, judgement.exit) == ("pass", 0)
    assert [
        judged.ticket for judged in judgement.findings if judged.state == "xfail" and judged.finding.gate == "floor"
    ] == ["set aside"]
    other, _, _ = night_of(tmp_path / "other", 3, "n2", "n3")
    assert judging.judge(other, (), (), ["n2"]).outcome == "fail"


def test_many_accused_nodes_have_a_common_cause_and_none_is_called_out(tmp_path: Path) -> None:
    directory, night, judgement = night_of(tmp_path, 1, "n1", "n2", "n3")
    assert hook.is_common_cause(night, hook.accused(night, judgement))
    assert hook.handle(directory, night, judgement, "false", is_applied=True) == ()
    assert not (directory / hook.EVIDENCE).exists()


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / quarantine.FILE).write_text("{")
    [line] = quarantine.lines(tmp_path, BED)
    assert "what is set aside is not known" in line


def test_a_night_that_is_judged_again_prints_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    night_of(tmp_path / "runs", 7, "n2")
    out, err = io.StringIO(), io.StringIO()
    session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=err))
    code = main.run(
        ["nightly", "--resume", "0007", "--on-culprit", "scontrol update NodeName={host} State=DRAIN"], session
    )
    assert code == 1, err.getvalue()
    assert "n2: would call: scontrol update NodeName=host-n2 State=DRAIN" in out.getvalue()
    assert (tmp_path / "runs").exists()


def test_a_command_that_prints_megabytes_fails_with_its_last_words_in_one_line() -> None:
    text = hook.call(
        [sys.executable, "-c", "import sys; sys.stderr.write('x' * (8 << 20) + '\\nlast words\\n'); sys.exit(4)"]
    )
    assert text.endswith(": exit code 4: last words")
    assert hook.call([sys.executable, "-c", "print('y' * (8 << 20))"]) == ""


def test_a_background_process_of_a_command_does_not_count_as_its_time() -> None:
    assert hook.call(["sh", "-c", "sleep 60 &"], deadline_s=30.0) == ""


@pytest.mark.parametrize("command", [" ", "''", "'' --reason {reason}"])
def test_a_command_without_a_program_is_refused_before_the_night(command: str) -> None:
    with pytest.raises(UsageError, match="names no program"):
        hook.check(command)
    hook.check("")
