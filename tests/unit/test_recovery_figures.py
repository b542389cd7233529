"""What stands beside the time to recover of a script: stall of commits, the state that was read, where it lay."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest

from orchestrator.core.verdict import run_metrics
from orchestrator.model import watch
from orchestrator.model.run import NodeFiles, Run
from orchestrator.rank.watcher.checkpoints import loads
from orchestrator.reports.page import page_tables
from orchestrator.views import failovers
from orchestrator.views.training import RecoveryFigures, recovery_figures

from . import history
from .verdicts import ask
from .watched_jobs import digest, wrong


class _Files:
    def __init__(self, files: list[watch.WatchFile]) -> None:
        self._files = files

    def watch(self) -> list[watch.WatchFile]:
        return self._files

    def steps(self) -> list[object]:
        return []


def watched(fs: str = "nfs4", loads: bool = True, later_save: bool = True, ranks: int = 4) -> Run:
    """The reference of ``history``: two steps and two saves before the fault, resumed from the second after it."""
    run = history.reference()
    at = next(event.t for event in run.history.events if event.f == "fault.injected")
    first = run.history.events[0]
    zero, boot = first.at.mono - first.t, first.at.boot

    def process(epoch: int, rank: int, began: float, base: int, ends: list[float], read: bool) -> watch.WatchFile:
        t = zero + began
        lines: list[watch.Line] = [
            watch.Begin(
                t=t, format=1, rank=rank, pid=10 * epoch + rank, local_rank=0, boot=boot, attempt=epoch, wall=t
            ),
            watch.Owner(t=t, optimizer="SGD", compiled=False),
        ]
        if read:
            path = f"/share/{base}.pt"
            lines.append(watch.Load(t=t, id=1, path=path, sha256=str(base), weights=digest(base), bytes=5, fs=fs))
        for n, end in enumerate(ends, 1):
            lines.append(watch.State(t=zero + end - 0.01, n=n - 1, weights=digest(base + n - 1)))
            lines.append(watch.Step(t=zero + end, n=n, start=zero + end - 0.01, end=zero + end))
            if rank == 0 and (later_save or not epoch):
                step, t = base + n, zero + end + 0.001
                path = f"/share/{step}.pt"
                lines += [
                    watch.Save(t=t, id=step, n=n, path=path),
                    watch.Saved(t=t, id=step, weights=digest(step), matched=1.0),
                    watch.Committed(t=t, id=step, path=path, sha256=str(step), bytes=4_000_000, t_committed=t),
                ]
        name = f"nodes/m{rank}/i1-e{epoch}/watch-r{rank}-{10 * epoch + rank}.jsonl"
        return watch.WatchFile(
            path=name, node=f"m{rank}", attempt=epoch, rank=rank, pid=10 * epoch + rank, lines=tuple(lines)
        )

    files = [process(0, rank, 0.01, 0, [at - 0.06, at - 0.041], read=False) for rank in range(4)]
    files += [process(1, rank, at + 0.5, 2, [at + 0.959, at + 2.0], read=loads) for rank in range(ranks)]
    trial = dataclasses.replace(run.trial, workload="script", params={"file": "/job/train.py"})
    return dataclasses.replace(run, trial=trial, files=cast(NodeFiles, _Files(files)))


def figures(run: Run) -> RecoveryFigures:
    (known,) = recovery_figures(run, failovers(run.trial, run.history))
    return known


def test_the_state_that_was_read_and_the_stall_of_commits() -> None:
    known = figures(watched())
    assert known.stall_s == pytest.approx(1.0)
    assert (known.state_bytes, known.tier, known.is_compiled) == (4_000_000, "shared (nfs4)", False)
    assert known.reduced_s is None
    (rows,) = page_tables.recoveries([known])
    assert ("state that was read", "4.0 MB") in rows and ("checkpoint on", "shared (nfs4)") in rows


def test_what_is_not_known_is_absent() -> None:
    known = figures(watched(fs="zzfs", later_save=False))
    assert (known.stall_s, known.tier) == (None, "zzfs")
    unread = figures(watched(loads=False))
    assert (unread.state_bytes, unread.tier) == (None, None)
    (rows,) = page_tables.recoveries([RecoveryFigures()])
    assert rows == []


def test_a_run_that_is_not_watched_has_no_figures() -> None:
    assert figures(history.reference()) == RecoveryFigures()


def test_the_figures_are_metrics() -> None:
    named = {metric.metric: (metric.value, metric.unit) for metric in run_metrics.of(watched())}
    assert named["state"] == (4_000_000.0, "B") and named["commit-stall"][1] == "s"
    assert "reduced-strength" not in named


def test_the_file_system_is_that_of_the_mount_on_top(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:20 / / rw - ext4 /dev/vda rw\n30 22 0:30 / /mnt rw shared:1 - nfs4 srv:/x rw\n"
        "31 30 0:31 / /mnt/my\\040disk rw - tmpfs tmpfs rw\n32 22 0:32 / /mnt rw - xfs /dev/vdb rw\n"
    )
    kinds = [loads.file_system_of(path, str(mounts)) for path in ("/mnt/a", "/mnt/my disk/a", "/mntx", "/mnt")]
    assert kinds == ["xfs", "tmpfs", "ext4", "xfs"]
    assert loads.file_system_of("/x", str(tmp_path / "none")) == ""
    assert loads.file_system_of("/proc/self") == "proc"


def test_the_rows_of_the_state_are_a_table_of_the_page() -> None:
    run = wrong("lr").run()
    (row,) = page_tables.verdicts(dataclasses.replace(run, verdicts=(ask(run, "resume-complete"),)))
    parts = {part: (attempt, state) for attempt, part, state, _ in row.parts}
    assert parts["learning rate"] == ("restart 1", "fail") and parts["weights"] == ("restart 1", "pass")
    assert len(parts) == 8
