"""The verbs: what they print, where, and with which exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.app import down
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import live_lines, terminal
from orchestrator.model import codec
from orchestrator.model.bed import NodeStatus
from orchestrator.model.launch import Request, Result
from orchestrator.store import bed_files as store
from orchestrator.store import shipped

from . import history
from .beds import LOCAL
from .fake_bed import FakeProvider


@dataclass(kw_only=True)
class Desk:
    """A command line in a directory of its own, with a bed in memory."""

    root: Path
    bed: FakeProvider = field(default_factory=FakeProvider)
    out: str = ""
    err: str = ""
    launched: list[Request] = field(default_factory=list)

    def __call__(self, *args: str) -> int:
        out, err = io.StringIO(), io.StringIO()
        session = Session(
            state=self.root / "state",
            terminal=terminal.Terminal(out=out, err=err),
            providers={"process": lambda state: self.bed},
            agent=lambda: "a" * 64,
            launch=self._launch,
        )
        code = main.run(args, session)
        self.out, self.err = out.getvalue(), err.getvalue()
        return code

    def _launch(self, request: Request) -> Result:
        self.launched.append(request)
        raise KeyboardInterrupt


@pytest.fixture
def ccbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "local.yml").write_text(LOCAL)
    return Desk(root=tmp_path)


def test_up_says_its_plan_and_a_second_up_changes_nothing(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml") == 0
    assert "plan: 5 to create, 0 to change, 0 to remove" in ccbed.out
    assert "n0 n1 n2 n3   node   not there" in ccbed.out
    assert "undo: ccbed down local" in ccbed.out
    commands = list(ccbed.bed.commands)
    assert ccbed("up", "local.yml") == 0
    assert ccbed.out.startswith("bed local: nothing to change, 5 of 5 ready (")
    assert ccbed.bed.commands == commands


def test_a_plan_of_one_node_and_the_keeper_has_its_columns_below_each_other(ccbed: Desk) -> None:
    (ccbed.root / "one.yml").write_text(LOCAL.replace("ccbed_nodes: 4, ccbed_spares: 1", "ccbed_nodes: 1"))
    ccbed("up", "one.yml")
    rows = [line for line in ccbed.out.splitlines() if line.startswith("  + ")]
    assert len(rows) == 2 and len({row.index("not there") for row in rows}) == 1, rows


def test_down_names_what_it_ended_in_order(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    names = sorted(ccbed.bed.nodes, reverse=True)
    ccbed.bed.nodes = {name: ccbed.bed.nodes[name] for name in names}
    assert ccbed("down", "local") == 0
    assert "5 processes ended (n0 n1 n2 n3 n4), none is left" in ccbed.out
    assert down._names([NodeStatus(name=f"n{i}", state="warm") for i in (10, 2)], 3) == " (n2 n10 and the host agent)"
    many = [NodeStatus(name=f"n{i}", state="warm") for i in range(64)]
    assert down._names(many, 65) == " (n0 n1 n2 … n63 (64) and the host agent)"
    assert down._names([NodeStatus(name="n1", state="warm")], 4) == " (n1 and 3 more)"
    assert down._names([NodeStatus(name="n1", state="warm")], 4, hosts=3) == " (n1 and 3 host agents)"


def test_a_list_of_runs_says_how_they_ended(ccbed: Desk) -> None:
    for number, outcomes in enumerate((("pass", "fail"), ("pass", "unknown"), ("pass",), None)):
        run = ccbed.root / "runs" / f"2026-11-21T02-00-0{number}Z-dp-ring-3f9{number}"
        run.mkdir(parents=True)
        (run / "trial.json").write_text("{}")
        if outcomes:
            (run / "history.jsonl").write_text(json.dumps(codec.plain(history.clean().history.events[-1])) + "\n")
            (run / "verdicts.json").write_text(
                json.dumps([{"check": outcome, "outcome": outcome, "text": ""} for outcome in outcomes])
            )
    assert ccbed("list", "runs") == 0
    assert [line.split()[-1] for line in ccbed.out.splitlines()] == ["STATE", "fail", "unknown", "pass", "open"]


def test_the_first_line_of_every_trial_is_a_sentence(ccbed: Desk) -> None:
    assert ccbed("list", "trials", "--json") == 0
    for path in shipped_trials():
        first = path.read_text().splitlines()[0]
        assert first.startswith("# ") and first.endswith("."), path


def test_a_cached_twin_is_printed(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed("run", "dp-ring")
    ccbed.launched[-1].on_cached_twin("2026-11-21T02-00-07Z-dp-ring-twin-9d12")
    out = io.StringIO()
    printer = live_lines.Printer(terminal=terminal.Terminal(out=out, err=out), trial=ccbed.launched[-1].trial, slots=())
    printer.cached_twin("2026-11-21T02-00-07Z-dp-ring-twin-9d12")
    expected = "reference run of 02:00 UTC used again: 2026-11-21T02-00-07Z-dp-ring-twin-9d12\n"
    assert out.getvalue() == expected


def shipped_trials() -> list[Path]:
    return sorted(Path(main.__file__).parents[1].rglob("trials/*.yml"))


def test_up_brings_back_only_what_is_missing(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed.bed.state("n2", "dead")
    ccbed.bed.commands.clear()
    assert ccbed("up", "local.yml") == 0
    assert ccbed.bed.commands == ["node.apply n2"]


def test_a_dry_run_and_plan_change_nothing(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml", "--dry-run") == 0
    assert "5 to create" in ccbed.out
    assert ccbed("plan", "local.yml", "--json") == 0
    assert json.loads(ccbed.out)["empty"] is False
    assert ccbed.bed.commands == []


def test_a_node_that_does_not_come_up_is_named_with_its_reason(ccbed: Desk) -> None:
    ccbed.bed.broken = ("n1", "n3")
    assert ccbed("up", "local.yml") == 4
    assert "error: node n1: no memory left" in ccbed.err
    assert "error: node n3: no memory left" in ccbed.err
    assert "next: ccbed logs local/keeper" in ccbed.err


def test_an_agent_that_has_changed_ends_everything_and_starts_it_anew(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed.bed.keeper = "b" * 64
    ccbed.bed.commands.clear()
    assert ccbed("up", "local.yml") == 0
    assert ccbed.bed.commands[0] == "retire"
    assert "agent changed bbbbbb -> aaaaaa" in ccbed.out


def test_down_ends_the_bed_also_when_its_file_is_gone(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "state/beds/local.json").unlink()
    (ccbed.root / "state/beds/local/nodes").mkdir(parents=True)
    assert ccbed("status") == 0
    assert "its bed file is missing; end it with: ccbed down local" in ccbed.out
    assert ccbed("down", "local") == 0
    assert "5 processes ended (n0 n1 n2 n3 n4), none is left" in ccbed.out
    assert ccbed.bed.nodes == {}


def test_down_twice_is_no_mistake(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("down") == 0
    assert ccbed("down") == 0
    assert ccbed.out == "no bed is up, nothing to end\n"


@pytest.mark.parametrize("verb", [("down", "local"), ("up", "local.yml")])
def test_an_open_run_is_not_ended_without_force(ccbed: Desk, verb: tuple[str, str]) -> None:
    ccbed("up", "local.yml")
    workdir = ccbed.root / "state/beds/local"
    run = "2026-11-21T02-00-07Z-dp-ring-3f9c"
    store.change_run(workdir, run, ccbed.root / "runs/r", begun=True)
    ccbed.bed.state("n2", "dead")
    assert ccbed(*verb) == 3
    assert "has an open run, 2026-11-21T02-00-07Z-dp-ring-3f9c" in ccbed.err
    assert "ccbed resume runs/r" in ccbed.err
    assert ccbed(*verb, "--force") == 0


def test_no_bed_up_is_told_with_the_line_that_brings_one_up(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring") == 3
    assert ccbed.err == "error: no bed is up\nnext: ccbed up inventories/local.yml\n"


def test_two_beds_up_need_a_choice(ccbed: Desk) -> None:
    (ccbed.root / "lab.yml").write_text(LOCAL)
    ccbed("up", "local.yml")
    ccbed.bed = FakeProvider()
    ccbed("up", "lab.yml")
    assert ccbed("run", "dp-ring") == 3
    assert ccbed.err == "error: several beds are up: lab, local\nnext: --bed lab\n"
    assert ccbed("run", "dp-ring", "--bed", "lab") == 130
    assert ccbed.launched[-1].bed.name == "lab"


def test_run_brings_up_the_bed_of_an_inventory(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring", "-i", "local.yml") == 130
    assert len(ccbed.bed.nodes) == 5


def test_the_mistakes_of_a_trial_are_told_before_those_of_the_bed(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring", "--fail-node", "9", "--seed", "x") == 3
    assert "--fail-node 9: crash-node.node: the trial has nodes 0..3 (got 9)" in ccbed.err
    assert "--seed: must be a whole number (got x)" in ccbed.err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("run", "dp-ring", "--bach", "3"), "unknown option --bach"),
        (("run", "dp-rin"), "no trial dp-rin; did you mean dp-ring?"),
        (("run",), "Missing argument"),
        (("run", "dp-ring", "--at", "10s"), "--at needs --fail-node"),
        (("run", "dp-ring", *["--fail-node", "1"] * 3, *["--at", "10s"] * 2), "once per --fail-node (got 2 for 3)"),
        (("run", "dp-ring", "--", "x"), "takes no arguments of its own (got x)"),
        (("run", "nothing.py"), "nothing.py: cannot be read: No such file or directory"),
        (("upp",), "unknown verb upp; did you mean up?"),
        (("up",), "Missing argument 'INVENTORY'"),
        (("up", "nothing.yml"), "nothing.yml: cannot be read"),
        (("status", "lab"), "no bed lab is up; up: none"),
        (("check", "ffff"), "no run ffff in runs"),
        (("--plugins", "nothing", "list"), "--plugins nothing: no such directory"),
    ],
)
def test_a_wrong_command_line_is_one_error_and_code_three(ccbed: Desk, args: tuple[str, ...], text: str) -> None:
    assert ccbed(*args) == 3
    assert text in ccbed.err
    assert "Traceback" not in ccbed.err


def test_every_field_of_the_workload_is_an_option(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed("run", "--batch", "128", "dp-ring", "--checkpoint-every=10", "--fail-node", "2", "--recovery", "restart")
    trial = ccbed.launched[-1].trial
    assert (trial.params["batch"], trial.params["checkpoint_every"]) == (128, 10)
    assert (trial.faults[0].at.step, trial.recovery.policy) == (15, ("restart",))
    assert ccbed("run", "dp-ring", "--help") == 0


def test_a_node_killed_on_purpose_must_be_detected_in_time(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed("run", "dp-ring")
    assert "detected-within" not in [check.name for check in ccbed.launched[-1].trial.checks]
    ccbed("run", "dp-ring", "--fail-node", "2")
    assert ccbed.launched[-1].trial.checks[-1].params == {"seconds": 2.0}


def test_several_nodes_are_killed_at_the_same_time_unless_each_has_its_own(
    ccbed: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    ccbed("up", "local.yml")

    def steps(*at: str) -> list[int | None]:
        ccbed("run", "dp-ring", "--fail-node", "1", "--fail-node", "2", *at)
        return [fault.at.step for fault in ccbed.launched[-1].trial.faults]

    assert steps() == [30, 30]
    assert steps("--at", "step=20") == [20, 20]
    assert steps("--at", "step=20", "--at", "step=40") == [20, 40]
    assert ccbed("run", "dp-ring", "--help") == 0
    assert "without --at all are killed at the same time" in " ".join(capsys.readouterr().out.split())


def test_without_a_twin_the_checks_that_the_trial_names_stay_in_it(ccbed: Desk) -> None:
    (ccbed.root / "t.yml").write_text("{trial: t, workload: train-dp, checks: [bit-exact, detected-within: 2s]}")
    ccbed("up", "local.yml")
    ccbed("run", "t.yml", "--no-reference")
    assert [check.name for check in ccbed.launched[-1].trial.checks] == ["bit-exact", "detected-within"]
    assert ccbed.launched[-1].twin is False


def test_a_launcher_gets_the_ranks_of_a_node_and_recovers_by_itself(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    ccbed("run", "train.py", "--launcher", "torchrun", "--nproc-per-node", "2", "--fail-node", "1")
    trial = ccbed.launched[-1].trial
    assert (trial.params["launcher"], trial.params["nproc"]) == ("torchrun", 2)
    assert (trial.world.ranks_per_node, trial.recovery.policy) == (1, ("theirs",))
    assert trial.faults[0].at.exact is True
    ccbed("run", "train.py", "--launcher", "torchrun", "--recovery", "restart")
    assert ccbed.launched[-1].trial.recovery.policy == ("restart",)


def test_a_script_gets_all_nodes_its_arguments_and_no_recovery(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "train.py").write_text("print(1)")
    ccbed("run", "train.py", "--", "--epochs", "3")
    trial = ccbed.launched[-1].trial
    assert trial.params["file"] == str(ccbed.root / "train.py")
    assert trial.params["cwd"] == str(Path.cwd())
    assert (list(trial.params["args"]), trial.world.nodes) == (["--epochs", "3"], 4)
    assert trial.recovery.policy == ("none",)
    ccbed("run", "train.py", "--fail-node", "1")
    at = ccbed.launched[-1].trial.faults[0].at
    assert (at.after_save, at.steps_later, at.exact) == (2, None, True), "after there is a checkpoint to resume from"


def test_the_paths_of_a_script_in_a_trial_are_those_of_the_current_directory(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "jobs").mkdir()
    (ccbed.root / "jobs/train.py").write_text("print(1)")
    (ccbed.root / "t.yml").write_text("{trial: t, workload: script, params: {file: jobs/train.py}}")
    monkeypatch.chdir(ccbed.root)
    ccbed("run", "t.yml", "--root", ".")
    params = ccbed.launched[-1].trial.params
    assert (params["file"], params["cwd"]) == (str(ccbed.root / "jobs/train.py"), str(ccbed.root))
    assert params["root"] == str(ccbed.root)
    assert ccbed("run", "t.yml", "--root", "elsewhere") == 3
    assert "must contain the script" in ccbed.err


@pytest.mark.parametrize("size", ["1gb", "4gb"])
def test_a_shipped_trial_runs_an_example_of_some_size(ccbed: Desk, size: str) -> None:
    ccbed("up", "local.yml")
    ccbed("run", f"gpt-{size}", "--fail-node", "1")
    request = ccbed.launched[-1]
    assert Path(request.trial.params["file"]) == shipped.examples()["gpt-ddp"]
    assert (request.trial.world.nodes, request.trial.params["args"][:2]) == (2, ["--size", size])
    assert request.trial.faults[0].at.after_save == 2
    (ccbed.root / "t.yml").write_text("{trial: t, workload: script, params: {file: 'example:gpt-ddd'}}")
    assert ccbed("run", "t.yml") == 3
    assert "no example gpt-ddd" in ccbed.err


def test_a_dry_run_prints_trial_and_plan_and_starts_nothing(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("run", "dp-ring", "--fail-node", "2", "--dry-run") == 0
    assert "act    f0 on n2: power off" in ccbed.out
    assert ccbed("run", "dp-ring", "--fail-node", "2", "--dry-run", "--json") == 0
    document = json.loads(ccbed.out)
    assert document["plan"]["slots"] == ["n0", "n1", "n2", "n3"]
    assert document["trial"]["faults"][0]["at"]["step"] == 30
    assert ccbed.launched == []


def test_a_dry_run_with_an_inventory_takes_its_bed_as_up_and_leaves_it_down(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring", "--bed", "local", "--dry-run") == 3, (
        "the control: without the inventory there is no bed"
    )
    assert ccbed("run", "dp-ring", "-i", "local.yml", "--fail-node", "2", "--dry-run") == 0, ccbed.err
    assert "act    f0 on n2: power off" in ccbed.out
    assert ccbed.launched == [] and ccbed("run", "dp-ring", "--bed", "local", "--dry-run") == 3


def test_help_lists_the_workloads_options_and_helps_without_a_readable_trial(
    ccbed: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    (ccbed.root / "train.py").write_text("print(1)")
    assert ccbed("run", "train.py", "--help") == 0
    assert "--step-regex" in capsys.readouterr().out
    assert ccbed("run", "nothing.py", "--help") == 0


def test_help_shows_what_the_trial_sets_with_its_meaning(ccbed: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert ccbed("run", "allreduce", "--help") == 0
    output = capsys.readouterr().out
    text = " ".join(output.split())
    assert "Parameters of workload collective (allreduce.yml):" in output
    assert "[default: ring,library]" in text and "[default: 4K:4M:4]" in text
    assert "--iterations N timed iterations per combination [default: 20]" in text
    assert "--verify true|false compare every result" in text and "[default: true]" in text
    assert "TEXT collective" not in text and "('" not in output


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ("allreduce --sizes 1K:0", "ccbed run allreduce --help lists every parameter and its form"),
        ("alltoall --shares .2,.2", "ccbed run alltoall --help lists every parameter and its form"),
        ("dp-ring --fail-node 9", "ccbed run dp-ring --fail-node 3, or --nodes 10"),
        ("l.yml --iterations x", "ccbed run l.yml --help lists every parameter and its form"),
        ("dp-ring --algorithm rng", "ccbed list algorithms"),
        ("dp-ring --at 10s", "ccbed run dp-ring --fail-node 2 --at 10s"),
        (
            "dp-ring --nodes 7",
            "ccbed run dp-ring --nodes 4\nnext: or raise ccbed_nodes in local.yml, then: ccbed up local.yml",
        ),
        (
            "l.yml",
            "ccbed run l.yml --nodes 4\nnext: or raise ccbed_nodes in local.yml, then: ccbed up local.yml",
        ),
        ("g.yml", "raise ccbed_nodes in local.yml, then: ccbed up local.yml"),
        ("f.yml", "raise ccbed_nodes in local.yml, then: ccbed up local.yml"),
    ],
)
def test_what_to_do_next_is_said_of_this_very_trial(ccbed: Desk, args: str, hint: str) -> None:
    """And it is possible: fewer nodes only where its groups and faults allow it."""
    head = "trial: l\nworkload: collective\nworld: {nodes: 8}\n"
    (ccbed.root / "train.py").write_text("print(1)")
    (ccbed.root / "l.yml").write_text(head)
    (ccbed.root / "g.yml").write_text(head + "params: {groups: '0,1,2,3/4,5,6,7'}\n")
    (ccbed.root / "f.yml").write_text(head + "faults: [crash-node: {node: 6}]\n")
    ccbed("up", "local.yml")
    assert ccbed("run", *args.split()) == 3
    assert ccbed.err.endswith(f"next: {hint}\n")


def test_a_data_directory_that_is_not_there_is_told_before_anything_starts(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("run", "dp-ring", "--data-dir", "nothing") == 3
    assert "--data-dir: no such directory" in ccbed.err
    assert ccbed.launched == []


def test_options_come_from_the_environment_too(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ccbed("up", "local.yml")
    monkeypatch.setenv("CCBED_SEED", "11")
    monkeypatch.setenv("CCBED_FAIL_NODE", "1 2")
    monkeypatch.setenv("CCBED_RUNS_DIR", "elsewhere")
    monkeypatch.setenv("CCBED_BATCH", "32")
    ccbed("run", "dp-ring")
    request = ccbed.launched[-1]
    assert request.trial.params["batch"] == 32
    assert (request.trial.seed, [fault.node for fault in request.trial.faults]) == (11, [1, 2])
    assert request.runs == "elsewhere"


def test_status_is_read_by_programs(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("status", "--json") == 0
    (document,) = json.loads(ccbed.out)
    assert (document["bed"], document["as_wanted"], len(document["nodes"])) == ("local", True, 5)


def test_list_tells_every_plugin_with_its_first_line(ccbed: Desk) -> None:
    assert ccbed("list") == 0
    assert "crash-node Kills every process of a node" in " ".join(ccbed.out.split())
    assert ccbed("list", "faults", "--json") == 0
    assert {row["name"] for row in json.loads(ccbed.out)} >= {"crash-node", "pause-node"}


def test_heal_without_a_cause_says_so(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("heal") == 0
    assert "bed local has nothing to undo" in ccbed.out


def test_a_run_that_is_driven_is_not_healed(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    workdir = ccbed.root / "state/beds/local"
    with store.run_lock(workdir, "r", ccbed.root / "runs/r"):
        store.begin_run(workdir, "r", ccbed.root / "runs/r")
        assert ccbed("heal") == 3
    assert "run r is being driven by pid" in ccbed.err


def test_a_defect_is_one_line_and_its_traceback_is_kept(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bed: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(ccbed.bed, "observe", broken)
    assert ccbed("up", "local.yml") == 4
    assert "error: internal error of ccbed: ZeroDivisionError: oh" in ccbed.err
    (crash,) = (ccbed.root / "state").glob("crash-*.txt")
    assert "Traceback" in crash.read_text()


def test_help_needs_neither_torch_nor_yaml_nor_rich() -> None:
    program = (
        "import sys; from orchestrator.cli import main; code = main.run(['--help']);"
        "print(code, [name for name in ('torch', 'yaml', 'rich', 'ansible', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert all(f"  {verb} " in done.stdout for verb in main.VERBS)


def test_an_interruption_while_the_program_loads_is_no_traceback() -> None:
    program = (
        "from orchestrator import __main__ as program\n"
        "from orchestrator.cli import main\n"
        "def interrupted(args): raise KeyboardInterrupt\n"
        "main.run = interrupted\n"
        "program.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
