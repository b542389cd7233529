"""Requests: plain values with one place for each default, from which options are made; use cases work without a terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click
import pytest

from orchestrator.app import check, down, leftovers, listing, requests, resume, run, starters, up
from orchestrator.app.hosts import exec_, images, set_aside
from orchestrator.app.recorded import bundles, compare, follow, logs, report
from orchestrator.app.requests import DownRequest, OneBedRequest, PlanRequest, RunRequest, TrialRef, UpRequest
from orchestrator.app.session import Session
from orchestrator.cli import main
from orchestrator.collectives.app.size_request import SizeRequest
from orchestrator.jobs.app import checkpoint_audit, judged_records
from orchestrator.model import codec
from orchestrator.model.errors import UsageError
from orchestrator.model.launch import Request, Result
from orchestrator.nightly.app import accepted_floors, night_runs, node_probing, recorded_runs, sweep_rounds
from orchestrator.nightly.app.night_requests import AcceptRequest, NightRequest, SweepRequest

from .beds import LOCAL
from .fake_bed import FakeProvider

#: Verb -> its request.
REQUESTS: dict[str, type] = {
    "run": RunRequest, "up": UpRequest, "down": DownRequest, "sweep": SweepRequest, "nightly": NightRequest, "size": SizeRequest,
    "plan": PlanRequest, "doctor": PlanRequest, "status": OneBedRequest, "heal": OneBedRequest,
    "resume": resume.ResumeRequest, "check": check.CheckRequest, "list": listing.ListRequest, "prune": leftovers.PruneRequest,
    "set-aside": set_aside.SetAsideRequest,
    "exec": exec_.ExecRequest, "image build": images.BuildRequest, "image list": images.ListRequest,
    "accept": AcceptRequest, "baseline accept": accepted_floors.AcceptFloorsRequest, "baseline show": accepted_floors.ShowFloorsRequest,
    "runs": recorded_runs.RunsRequest, "runs prune": leftovers.PruneRunsRequest, "trend": recorded_runs.TrendRequest,
    "init": starters.InitRequest, "bundle export": bundles.ExportRequest, "bundle verify": bundles.VerifyRequest,
    "bundle sign": bundles.SignRequest, "checkpoint check": checkpoint_audit.CheckpointRequest, "compare": compare.CompareRequest,
    "probe": node_probing.ProbeRequest, "judge": judged_records.JudgeRequest,
    "logs": logs.LogsRequest, "report": report.ReportRequest, "watch": follow.WatchRequest, "top": follow.WatchRequest,
}  # fmt: skip
#: Verbs of the command line itself: they have no use case, or only verbs below them.
WITHOUT_REQUEST = {"completion", "config", "baseline", "bundle", "checkpoint", "image", "help"}
#: Options of a verb that are no part of what is asked for: how it is shown, and the session's own.
SHOWN = {"as_json", "quiet", "verbose", "help"}


def params(verb: str) -> list[click.Parameter]:
    """What the line of a verb has, but for how it is shown."""
    name, _, below = verb.partition(" ")
    command = main.Verbs().get_command(click.Context(click.Command("ccbed")), name)
    assert command is not None
    if below:
        assert isinstance(command, click.Group)
        command = command.commands[below]
    return [param for param in command.params if param.expose_value and param.name not in SHOWN]


def options(verb: str) -> dict[str, click.Option]:
    return {str(param.name): param for param in params(verb) if isinstance(param, click.Option)}


def test_every_verb_fills_a_request() -> None:
    assert {verb.partition(" ")[0] for verb in REQUESTS} | WITHOUT_REQUEST == set(main.VERBS)


@pytest.mark.parametrize("verb", sorted(REQUESTS.keys() - {"run"}))
def test_each_argument_is_a_field_of_the_request_and_the_other_way_round(verb: str) -> None:
    arguments = [str(param.name) for param in params(verb) if isinstance(param, click.Argument)]
    named = [item.name for item in dataclasses.fields(REQUESTS[verb]) if "argument" in item.metadata]
    assert arguments == named


@pytest.mark.parametrize("verb", REQUESTS)
def test_each_option_is_a_field_of_the_request_and_the_other_way_round(verb: str) -> None:
    assert [*options(verb)] == [*requests.options_of(REQUESTS[verb])]


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_request_has_at_most_20_fields_and_so_have_its_values(verb: str) -> None:
    for kind in values_of(REQUESTS[verb]):
        assert len(dataclasses.fields(kind)) <= 20, kind


def values_of(kind: Any) -> Iterator[Any]:
    yield kind
    for hint in codec.hints(kind).values():
        if requests.is_request(hint):
            yield from values_of(hint)


def test_a_default_stands_in_the_request_alone() -> None:
    """A line without options asks for what a request without values does."""
    given = {"trial": "gemm", "bed": None}
    filled = {verb: kind for verb, kind in REQUESTS.items() if not any(param.required for param in params(verb))}
    for verb, kind in ({"run": RunRequest, "up": UpRequest, "sweep": SweepRequest} | filled).items():
        parsed = {
            name: option.get_default(click.Context(click.Command(verb))) for name, option in options(verb).items()
        }
        parsed = {
            name: parsed[name] or () if option.multiple else parsed[name] for name, option in options(verb).items()
        }
        extra = {"trial": TrialRef(name="gemm")} if kind is RunRequest else given
        inventory = {"inventory": Path("x.yml")} if kind is UpRequest else {}
        assert requests.build(kind, {**parsed, **extra, **inventory}) == requests.build(kind, {**extra, **inventory})


EXAMPLES: list[Any] = [
    requests.build(
        RunRequest,
        {
            "trial": TrialRef(name="train.py", args=("--epochs", "3")), "fail_node": ("1", "2"), "at": ("step=20",), "nodes": "2:4",
            "wall": "90s", "params": {"checkpoint_every": 5}, "runs_dir": Path("/tmp/r"), "twin": False, "env": ("A=1",),
            "inventory": Path("lab.yml"), "repeat": 3,
        },
    ),
    UpRequest(inventory=Path("lab.yml"), prepare=False, limit=("h1", "h2"), max_unavailable=1),
    DownRequest(bed="lab", force=True),
    requests.build(SweepRequest, {"trial": "gemm", "each_node": True, "inventory": Path("lab.yml"), "resume": Path("r")}),
    compare.CompareRequest(before="3f9c", after="8aa1", others=("77cd",), html=Path("x.html"), fail_over="5%"),
    bundles.VerifyRequest(run="3f9c", keys=(Path("a.key"), Path("b.key"))),
    follow.WatchRequest(timeout=2.5),
]  # fmt: skip


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda item: type(item).__name__)
def test_a_request_is_equal_after_a_journey_through_json(request_: Any) -> None:
    text = json.dumps(codec.plain(request_))
    assert codec.build(type(request_), json.loads(text)) == request_


def test_a_secret_of_a_request_is_not_in_its_text() -> None:
    assert "hunter2" not in repr(RunRequest(trial=TrialRef(name="train.py", args=("--token", "hunter2"))))


@dataclass
class Paper:
    """A screen without a terminal, and what follows runs and beds: each keeps the names of what it was followed, in order."""

    followed: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    @property
    def narrator(self) -> Paper:
        return self

    def silent(self) -> Paper:
        return replace(self, texts=[])

    def hidden(self, value: Any) -> Any:
        return value

    def line(self, text: str = "") -> None:
        self.texts.append(text)

    def lines(self, lines: Iterable[str]) -> None:
        self.texts += lines

    block = status = warn = line

    def run(self, session: Session, output: requests.OutputRequest, *, is_script: bool) -> Any:
        return self

    def bed(self, session: Session) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.followed.append(name)


@dataclass
class Desk:
    root: Path
    paper: Paper = field(default_factory=Paper)
    provider: FakeProvider = field(default_factory=FakeProvider)
    launched: list[Request] = field(default_factory=list)

    def session(self) -> Session:
        return Session(
            state=self.root / "state",
            terminal=self.paper,
            follow=cast(Any, self.paper),
            providers={"process": lambda state: self.provider},
            agent=lambda: "a" * 64,
            launch=self._launch,
        )

    def _launch(self, request: Request) -> Result:
        self.launched.append(request)
        request.on_begin("runs/r1")
        request.on_stage("sealing")
        return Result(run="r1", directory="runs/r1", code=0, verdicts=())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local.yml").write_text(LOCAL)
    return Desk(root=tmp_path)


def test_use_cases_work_without_a_terminal_and_tell_their_progress_in_order(desk: Desk) -> None:
    inventory = Path("local.yml")
    planned = up.plan(desk.session(), UpRequest(inventory=inventory))
    assert not planned.diff.empty and desk.paper.followed == [], "a plan changes nothing"
    assert up.run(desk.session(), UpRequest(inventory=inventory)).name == "local"
    assert [name for name in desk.paper.followed if name != "node_ready"] == [
        "away", "planned", "keepers_start", "keepers_started", "nodes_ready", "changed",
    ]  # fmt: skip
    desk.paper.followed.clear()
    up.run(desk.session(), UpRequest(inventory=inventory))
    assert desk.paper.followed == ["away", "unchanged"]
    desk.paper.followed.clear()
    request = requests.build(RunRequest, {"trial": TrialRef(name="dp-ring"), "fail_node": ("2",)})
    assert run.run(desk.session(), request).code == 0
    assert desk.paper.followed == ["planned", "begun", "stage", "ended", "judged"]
    assert desk.launched[-1].trial.faults[0].node == 2
    assert run.plan_run(desk.session(), request).plan.slots == ("n0", "n1", "n2", "n3")
    assert [item.bed for item in down.run(desk.session(), DownRequest())] == ["local"]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (requests.build(RunRequest, {"trial": TrialRef(name="dp-rin")}), "no trial dp-rin; did you mean dp-ring"),
        (requests.build(RunRequest, {"trial": TrialRef(name="dp-ring"), "nodes": "many"}), "--nodes: "),
        (requests.build(RunRequest, {"trial": TrialRef(name="dp-ring"), "at": ("step=3",)}), "--at needs --fail-node"),
        (requests.build(RunRequest, {"trial": TrialRef(name="dp-ring"), "params": {"epoch": 1}}), "--epoch: "),
        (requests.build(RunRequest, {"trial": TrialRef(content={"trial": "x", "workload": "dd"})}), "workload: "),
        (requests.build(SweepRequest, {"trial": "gemm"}), "either --each-node or --each-pair"),
        (requests.build(NightRequest, {"inventory": Path("nothing.yml")}), "no suite is named"),
        (DownRequest(all=True, limit=("h1",)), "--limit excludes --all"),
        (UpRequest(inventory=Path("nothing.yml")), "nothing.yml: cannot be read"),
    ],
)
def test_a_bad_value_is_one_error_of_the_use_case_and_nothing_is_started(
    desk: Desk, request_: Any, problem: str
) -> None:
    cases: dict[type, Any] = {
        RunRequest: run.run, SweepRequest: sweep_rounds.run, NightRequest: night_runs.run, DownRequest: down.run, UpRequest: up.run,
    }  # fmt: skip
    up.run(desk.session(), UpRequest(inventory=Path("local.yml")))
    with pytest.raises(UsageError) as raised:
        cases[type(request_)](desk.session(), request_)
    assert problem in "\n".join(raised.value.problems)
    assert desk.launched == []
