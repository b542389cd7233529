"""A bed's Slurm job on the command line: what `plan` prints, time left, and runs that do not fit."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.app import down
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec, Machine
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.model.trial import FaultPlan, Trial, Trigger
from orchestrator.nightly.app import night_trials
from orchestrator.nightly.suite import Night, Suite
from orchestrator.node.oslayer import processes
from orchestrator.slurm import allocation, job_state, slurm_jobs, slurm_provider
from orchestrator.slurm.allocation import Allocation, Driver
from orchestrator.slurm.job_state import JobState, LostNode
from orchestrator.slurm.slurm_commands import SlurmError
from orchestrator.store import bed_files as store

from .. import golden
from ..fake_bed import FakeProvider

INVENTORY = """
all:
  vars:
    ccbed_provider: slurm
    ccbed_bed: lab
    ccbed_partition: gpu
    ccbed_time: "1-06:30:00"
    ccbed_constraint: "a100&(ib|roce)"
    ccbed_nodelist: "gpu[01-04]"
    ccbed_sbatch: {mem: 64G, exclusive: true}
  hosts:
    cluster: {ccbed_nodes: 3, ccbed_spares: 1, ccbed_gres: "gpu:8", ccbed_gpus: 8}
"""


@pytest.fixture
def bed() -> BedSpec:
    inventory = parse_inventory.parse(INVENTORY, "slurm.yml")
    return nodes_from_inventory.assemble_bed(inventory, agent="a" * 12, state="/state", home="/h")


def with_container(settings: str) -> BedSpec:
    text = INVENTORY.replace("ccbed_bed: lab", f"ccbed_bed: lab\n    {settings}")
    inventory = parse_inventory.parse(text, "slurm.yml")
    return nodes_from_inventory.assemble_bed(inventory, agent="a" * 12, state="/state", home="/h")


def test_a_container_of_the_job() -> None:
    spec = with_container("ccbed_container: pyxis\n    ccbed_image: ~/train.sqsh\n    ccbed_mounts: /d:/data:ro").slurm
    assert spec and (spec.container, spec.image, spec.mounts) == ("pyxis", "/h/train.sqsh", ("/d:/data:ro",))
    spec = with_container("ccbed_container: none").slurm
    assert spec and (spec.container, spec.image, spec.mounts) == ("none", "", ())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("ccbed_container: podman", "slurm.yml:6: vars.ccbed_container: unknown; known: apptainer, none, pyxis"),
        ("ccbed_container: apptaner", "slurm.yml:6: vars.ccbed_container: unknown; did you mean apptainer?"),
        ("ccbed_container: pyxis", "slurm.yml:6: vars.ccbed_container: set ccbed_image too: the file of the image"),
        ("ccbed_image: /a.sqsh", "slurm.yml:6: vars.ccbed_image: set ccbed_container too: pyxis or apptainer"),
        ("ccbed_mounts: /a:/a", "slurm.yml:6: vars.ccbed_mounts: set ccbed_container too: pyxis or apptainer"),
        (
            "ccbed_image: nvcr.io/a:1\n    ccbed_container: pyxis",
            "slurm.yml:6: vars.ccbed_image: must be the path of a file that all nodes share (got nvcr.io/a:1)",
        ),
        (
            "ccbed_python: ~/e/python\n    ccbed_image: /a.sif\n    ccbed_container: apptainer",
            "slurm.yml:6: vars.ccbed_python: must be an absolute path in the image (got ~/e/python)",
        ),
    ],
    ids=range(7),
)
def test_a_container_that_cannot_be_is_rejected_with_its_place(settings: str, problem: str) -> None:
    with pytest.raises(UsageError) as error:
        with_container(settings)
    assert [text.partition(" (got")[0] for text in error.value.problems] == [problem.partition(" (got")[0]]


def test_a_range_of_ports() -> None:
    spec = with_container("ccbed_ports: 30000-30100").slurm
    assert spec and spec.ports == (30000, 30100)
    for value in ("80-90", "30100-30000", "30000-70000", "30000"):
        with pytest.raises(UsageError, match="ccbed_ports: must be a range of ports from 1024 to 65535"):
            with_container(f"ccbed_ports: {value}")


def test_beds_and_owners_that_name_one_directory_have_their_own_in_it() -> None:
    def hostdir(name: str, owner: str) -> str:
        text = INVENTORY.replace("ccbed_bed: lab", f"ccbed_bed: {name}\n    ccbed_workdir: ~/ccbed")
        inventory = parse_inventory.parse(text, "slurm.yml")
        bed = nodes_from_inventory.assemble_bed(
            inventory, agent="a" * 12, state="/state", home="/h", owner=lambda: owner
        )
        assert bed.shared_dir == f"{bed.hostdir}/shared"
        return bed.hostdir

    assert hostdir("lab", "0123456789abcdef") == "/h/ccbed/lab-01234567"
    assert len({hostdir(name, owner) for name in ("lab", "other") for owner in ("1" * 32, "2" * 32)}) == 4


def hold(bed: BedSpec, folder: Path, ends_at: float | None) -> BedSpec:
    """The bed with a job that ends then."""
    held = Allocation(job_id=12, nodes=("gpu01",), addresses=("198.18.0.1",), ends_at=ends_at, is_owned=True)
    allocation.write(held, folder)
    return replace(bed, workdir=str(folder))


def trial(after_s: float | None = None) -> Trial:
    fault = FaultPlan(id="f1", fault="crash-node", node=2, at=Trigger(after_s=after_s))
    return Trial(name="t", workload="train-dp", faults=(fault,) if after_s is not None else ())


def test_plan_prints_the_job_exactly_as_it_would_be_submitted(bed: BedSpec, tmp_path: Path) -> None:
    (tmp_path / "owner").write_text("0123456789abcdef\n")
    out = io.StringIO()
    session = Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out))
    bed = replace(bed, workdir=str(tmp_path / "beds/lab"))
    slurm_jobs.show_plan(session, bed)
    golden.same_as_golden("slurm/plan.txt", out.getvalue())
    assert slurm_jobs.plan(replace(bed, slurm=None)) is None


@pytest.mark.parametrize(
    ("options", "gpus", "is_warned"),
    [
        ({"gres": "gpu:8"}, 0, True), ({"gpus-per-node": "8"}, 0, True), ({"gres": "gpu:8"}, 8, False), ({"gres": "gpu:8"}, -1, False),
        ({"gres": "nic:1", "mem": "1G"}, 0, False),
    ],
)  # fmt: skip
def test_gpus_that_no_rank_would_use_are_a_warning(
    options: dict[str, str], gpus: int, is_warned: bool, bed: BedSpec, session: Session, printed: io.StringIO
) -> None:
    assert bed.slurm is not None
    nodes = tuple(replace(node, gpus=gpus) for node in bed.nodes)
    bed = replace(bed, nodes=nodes, slurm=replace(bed.slurm, options=options), workdir=str(session.state / "beds/lab"))
    slurm_jobs.show_plan(session, bed)
    warning = "warning: slurm.yml: bed lab: its job has GPUs, and its nodes use none: set ccbed_gpus"
    assert (warning in printed.getvalue()) is is_warned


@pytest.mark.parametrize(("after_s", "left_s"), [(None, 5.0), (600.0, 480.0)])
def test_a_run_that_does_not_fit_into_the_job_is_rejected_with_both_figures(
    after_s: float | None, left_s: float, bed: BedSpec, tmp_path: Path
) -> None:
    bed = hold(bed, tmp_path, time.time() + left_s)
    with pytest.raises(UsageError, match=rf"needs at least {after_s or 10:.0f} s, and job 12 of bed lab ends in \d+ s"):
        slurm_jobs.refuse_short(bed, trial(after_s))


@pytest.mark.parametrize("left_s", [None, 3600.0])
def test_a_run_that_fits_is_not_rejected(left_s: float | None, bed: BedSpec, tmp_path: Path) -> None:
    slurm_jobs.refuse_short(hold(bed, tmp_path, left_s and time.time() + left_s), trial(600.0))
    slurm_jobs.refuse_short(replace(bed, slurm=None), trial(600.0))


def test_what_took_longer_before_than_the_job_lasts_is_rejected(
    bed: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the inventory until the job is submitted, then by the end of the job."""
    assert bed.slurm is not None
    waits = replace(bed, workdir=str(tmp_path), slurm=replace(bed.slurm, time_s=60))
    slurm_jobs.refuse_longer(waits, 60.0, "the night")
    with pytest.raises(
        UsageError, match=r"the night took 61 s in earlier nights, and the job of bed lab has 60 s \(ccbed_time\)"
    ):
        slurm_jobs.refuse_longer(waits, 61.0, "the night")
    slurm_jobs.refuse_longer(replace(waits, slurm=replace(bed.slurm, time_s=0)), 1e6, "the night")
    held = hold(waits, tmp_path, time.time() + 600)
    slurm_jobs.refuse_longer(held, 500.0, "the cell")
    with pytest.raises(UsageError, match=r"the cell took 700 s in earlier nights, and job 12 of bed lab ends in \d+ s"):
        slurm_jobs.refuse_longer(held, 700.0, "the cell")
    monkeypatch.setattr(allocation, "read_state", lambda present: JobState(kind="cancelled", reason="why"))
    with pytest.raises(UsageError, match=r"the job of bed lab has 60 s \(ccbed_time\)"):
        slurm_jobs.refuse_longer(held, 61.0, "the night")  # another one will be submitted


@pytest.mark.parametrize(
    ("kinds", "end"),
    [
        (["completing", "cancelled"], "job 12: cancelled (why)"), (["timed out"], "job 12: timed out (why)"),
        (["running"], ""), (["completing", "preempted"], ""), (["node failed"], ""), (["absent"], ""), ([], ""),
    ],
    ids=str,
)  # fmt: skip
def test_the_deliberate_end_of_a_job_is_told_apart_from_a_loss(
    kinds: list[job_state.Kind], end: str, bed: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it completes, its end is not known yet; without a response of the controller it is not known either."""
    states = [JobState(kind=kind, reason="why") for kind in kinds]

    def read_state(present: Allocation) -> JobState:
        if not states:
            raise SlurmError("Slurm's controller does not respond")
        return states.pop(0)

    monkeypatch.setattr(allocation, "read_state", read_state)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert slurm_jobs.deliberate_end(hold(bed, tmp_path, None)) == end
    assert slurm_jobs.deliberate_end(replace(bed, workdir=str(tmp_path / "none"))) == ""
    assert slurm_jobs.deliberate_end(replace(bed, slurm=None)) == ""


def test_a_bed_whose_job_has_ended_is_named(bed: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = hold(bed, tmp_path, None)
    states = {
        kind: JobState(kind=kind, reason="why") for kind in ("running", "suspended", "unknown", "completing", "absent")
    }
    for kind, is_ended in zip(states, (False, False, False, True, True), strict=True):
        monkeypatch.setattr(allocation, "read_state", lambda present, state=states[kind]: state)
        assert slurm_jobs.has_ended(bed) is is_ended
    with pytest.raises(InfrastructureError, match="the job of bed lab has ended: ccbed status lab"):
        slurm_jobs.refuse_ended(bed)
    slurm_jobs.refuse_ended(replace(bed, slurm=None))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (None, ""),
        (JobState(kind="running", reason="it runs"), ""),
        (JobState(kind="suspended", reason="why"), "; suspended (why)"),
        (JobState(kind="running", reason="", lost=(LostNode(name="a2", kind="down", reason="fire"),)), "; node a2 is down (fire)"),
        (JobState(kind="timed out", reason="why"), "; timed out (why)"),
    ],
)  # fmt: skip
def test_status_shows_a_job_that_does_not_run_as_usual(state: JobState | None, text: str) -> None:
    held = Allocation(job_id=7, nodes=("a1", "a2"), addresses=("a1", "a2"), ends_at=None, is_owned=True)
    assert slurm_provider._describe(held, state) == f"7 on a1 a2{text}"


def test_time_left_is_a_time_and_a_duration() -> None:
    assert slurm_jobs.time_left(None) == "without a time limit"
    assert slurm_jobs.time_left(10_000.0, 10_000.0 - 7200 - 60 * 5).endswith(", in 2 h 5 min")
    assert slurm_jobs.time_left(10_000.0, 10_001.0).endswith(", in 0 min")


def test_a_run_shows_the_job_and_its_time_left_once(bed: BedSpec, session: Session, tmp_path: Path) -> None:
    assert slurm_jobs.describe(session, replace(bed, workdir=str(tmp_path))) == ()
    bed = hold(bed, tmp_path, time.time() + 7200 + 90)
    (line,) = slurm_jobs.describe(session, bed)
    assert line.startswith("job    12, ends at ") and line.endswith(", in 2 h 1 min")
    session.obtained.append("lab")
    assert slurm_jobs.describe(session, bed) == () == slurm_jobs.describe(session, replace(bed, slurm=None))


@pytest.fixture
def printed() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def session(tmp_path: Path, printed: io.StringIO) -> Session:
    return Session(state=tmp_path, terminal=terminal.Terminal(out=printed, err=printed))


def killed() -> Driver:
    """A command that does not run any more on this machine."""
    return replace(allocation.this_process(), start=1)


def drive(bed: BedSpec, folder: Path, driver: Driver | None) -> BedSpec:
    """The bed with the job of an ephemeral bed."""
    bed = hold(bed, folder, None)
    present = allocation.read(folder)
    assert present is not None
    allocation.write(replace(present, driver=driver), folder)
    return bed


def recorded_driver(folder: Path) -> Driver | None:
    present = allocation.read(folder)
    assert present is not None
    return present.driver


def test_up_keeps_a_job_that_a_killed_command_left(
    bed: BedSpec, session: Session, printed: io.StringIO, tmp_path: Path
) -> None:
    slurm_jobs.take_over(session, hold(bed, tmp_path, None))
    assert printed.getvalue() == ""
    slurm_jobs.take_over(session, drive(bed, tmp_path, killed()))
    assert recorded_driver(tmp_path) is None and session.obtained == []
    assert "job 12 of bed lab was left by a command that was killed; it is kept now" in printed.getvalue()


def test_of_two_runs_on_the_job_of_a_killed_command_one_takes_it_over(
    bed: BedSpec, session: Session, printed: io.StringIO, tmp_path: Path
) -> None:
    session.job = replace(session.job, is_ephemeral=True)
    bed = drive(bed, tmp_path, killed())
    slurm_jobs.take_over(session, bed)
    assert recorded_driver(tmp_path) == allocation.this_process() and session.obtained == ["lab"]
    assert "it is used and released" in printed.getvalue()
    other = replace(allocation.this_process(), pid=1, start=processes.start_time(1))
    second = replace(session, obtained=[])
    slurm_jobs.take_over(second, drive(bed, tmp_path, other))
    assert recorded_driver(tmp_path) == other and second.obtained == []
    assert "job 12 of bed lab ends with the command that submitted it (pid 1 on " in printed.getvalue()


def test_a_job_whose_run_is_open_is_left_to_resume(
    bed: BedSpec, session: Session, printed: io.StringIO, tmp_path: Path
) -> None:
    session.job = replace(session.job, is_ephemeral=True)
    bed = drive(bed, tmp_path, killed())
    store.begin_run(tmp_path, "r1", tmp_path / "night/runs/r1")
    slurm_jobs.take_over(session, bed)
    assert recorded_driver(tmp_path) == killed() and session.obtained == []
    assert "with run r1; ccbed resume " in printed.getvalue() and "uses and releases it" in printed.getvalue()
    (tmp_path / "night").mkdir()
    (tmp_path / "night/night.json").touch()
    slurm_jobs.take_over(session, bed)
    assert f"with run r1; ccbed nightly --resume {tmp_path / 'night'} uses and releases it" in printed.getvalue()
    session.job = replace(session.job, is_resumed=True)
    slurm_jobs.take_over(session, bed)
    assert recorded_driver(tmp_path) == allocation.this_process() and session.obtained == ["lab"]


def test_a_killed_command_is_told_apart_from_one_that_runs(bed: BedSpec, tmp_path: Path) -> None:
    hold(bed, tmp_path, None)
    kept, this = allocation.read(tmp_path), allocation.this_process()
    assert kept is not None
    cases = {
        None: False, this: False, killed(): True, replace(this, boot="before"): True,
        replace(killed(), hostname="elsewhere"): False, replace(this, hostname="elsewhere", boot="before"): False,
    }  # fmt: skip
    assert {driver: allocation.is_abandoned(replace(kept, driver=driver)) for driver in cases} == cases


def test_a_job_of_the_user_and_another_one_of_the_bed_exclude_each_other(
    bed: BedSpec, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = hold(bed, tmp_path, None)
    monkeypatch.setattr(allocation, "read_state", lambda present: JobState(kind="running", reason=""))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm_jobs.refuse_other_job(session, bed)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    slurm_jobs.refuse_other_job(session, bed)
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    with pytest.raises(UsageError, match="ccbed runs in job 13: bed lab has job 12"):
        slurm_jobs.refuse_other_job(session, bed)
    session.job = replace(session.job, job_id=14)
    with pytest.raises(UsageError, match="--jobid 14: bed lab has job 12"):
        slurm_jobs.refuse_other_job(session, bed)
    with pytest.raises(UsageError, match="--jobid 14: bed lab has provider process, which has no job"):
        slurm_jobs.refuse_other_job(session, replace(bed, provider="process", slurm=None))


def test_a_run_is_compared_with_the_present_end_of_the_job(
    bed: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = hold(bed, tmp_path, time.time() + 5)
    job = job_state.Job(
        job_id=12, kind="running", state="RUNNING", is_preempted=False, reason="None", node_list="gpu01", node_count=1, starts_at=1.0,
        ends_at=time.time() + 3600, user="me", partition="gpu", name="", comment="",
    )  # fmt: skip
    monkeypatch.setattr(job_state, "read_job", lambda job_id, deadline_s=None: job)
    slurm_jobs.refuse_short(bed, trial())
    present = allocation.read(tmp_path)
    assert present is not None and present.ends_at == job.ends_at


def test_a_job_of_another_user_is_refused(bed: BedSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """root may use it."""
    job = job_state.Job(
        job_id=12, kind="running", state="RUNNING", is_preempted=False, reason="None", node_list="gpu[01-04]", node_count=4, starts_at=1.0,
        ends_at=None, user="nobody-else", partition="gpu", name="", comment="",
    )  # fmt: skip
    monkeypatch.setattr(job_state, "read_job", lambda job_id, deadline_s=None: job)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="job 12 belongs to nobody-else"):
        allocation.adopt(bed, 12)


@pytest.mark.parametrize(("is_named", "ended"), [(False, []), (True, ["lab"])])
def test_the_job_that_a_resumed_night_obtains_for_a_kept_bed_stays(
    is_named: bool, ended: list[str], bed: BedSpec, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first job has ended. With -i, the job belongs to this command."""
    downs: list[str] = []
    bed = hold(bed, tmp_path, None)
    present = allocation.read(tmp_path)
    assert present is not None
    monkeypatch.setattr(allocation, "acquire", lambda bed, **options: replace(present, job_id=13))
    monkeypatch.setattr(down, "end", lambda session, bed, **options: downs.append(bed.name))
    with slurm_jobs.of_resumed_run(session, bed, quiet=True, is_named=is_named):
        slurm_jobs._obtain(session, bed)
    assert downs == ended
    assert (recorded_driver(tmp_path) is None) is not is_named


@pytest.mark.parametrize(
    ("released", "text"),
    [
        ((13,), "warning: bed lab: job 13 is cancelled; `down` was interrupted; to end what is left: ccbed down lab"),
        ((), "warning: bed lab: `down` was interrupted; to end what is left: ccbed down lab"),
        (KeyboardInterrupt(), "warning: bed lab: `down` was interrupted"),
        (SlurmError("no response"), "warning: bed lab: `down` was interrupted"),
    ],
    ids=["own job", "job of the user", "a third Ctrl-C", "no controller"],
)
def test_a_second_ctrl_c_cancels_the_job_of_an_ephemeral_bed(
    released: tuple[int, ...] | BaseException,
    text: str,
    bed: BedSpec,
    session: Session,
    printed: io.StringIO,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(session: Session, bed: BedSpec, **options: bool) -> None:
        raise KeyboardInterrupt

    def release(bed: BedSpec, present: Allocation | None) -> tuple[int, ...]:
        assert present is not None and present.job_id == 12
        if isinstance(released, BaseException):
            raise released
        return released

    monkeypatch.setattr(down, "end", interrupt)
    monkeypatch.setattr(allocation, "release", release)
    bed = hold(bed, tmp_path, None)
    session.obtained.append("lab")
    with pytest.raises(KeyboardInterrupt), slurm_jobs.of_command(session, bed, is_wanted=True):
        raise RuntimeError
    assert text in printed.getvalue()


@dataclass
class Machines(FakeProvider):
    """The nodes of the cluster that a job has, by host of the bed."""

    job: Mapping[str, str] = field(default_factory=dict)

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        return {host: Machine(name=name, address=name, port=6818) for host, name in self.job.items()}


@pytest.mark.parametrize(
    ("job", "quarantined"),
    [
        ({"h0": "gpu02", "h1": "gpu01", "h2": "gpu03", "h3": "gpu04"}, {"n0": "slow"}),
        ({"h0": "gpu07", "h1": "gpu08", "h2": "gpu03", "h3": "gpu04"}, {}),
        ({"h0": "gpu01", "h1": "gpu02", "h2": "gpu03", "h3": "gpu04"}, {"n1": "slow"}),
    ],
)
def test_quarantine_follows_the_host_into_the_next_job_of_a_night(
    job: dict[str, str], quarantined: dict[str, str], bed: BedSpec, session: Session, tmp_path: Path
) -> None:
    night = Night(
        name="night", suite=Suite(name="s", cells=()), bed="lab", provider="slurm",
        hosts={"n0": "gpu01", "n1": "gpu02", "n2": "gpu03"}, spares={"n3": "gpu04"}, quarantined={"n1": "slow"},
        number=0, started="", order=(), command="", ccbed="",
    )  # fmt: skip
    session = replace(session, providers={"slurm": lambda state: Machines(job=job)})
    trials = night_trials.NightTrials(session=session, bed=bed, directory=tmp_path / "night", night=night)
    assert trials._placement(trial()).quarantined == quarantined
