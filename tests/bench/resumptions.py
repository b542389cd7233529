"""Right and wrong resumptions of the programs in ``jobs``, killed for real, and what the verdicts on them are.

python -m tests.bench.resumptions --right 300 --wrong 300 --out DIRECTORY

Every case is a job of two or four ranks: processes forked from this one, which has imported torch. One of them dies by
SIGKILL, then the others; then the job is started again. No bed, no orchestrator.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import dataclasses
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.core.verdict import judge
from orchestrator.jobs.app.judged_records import CHECKS
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.model.verdict import Verdict
from orchestrator.store import recorded_files

from . import mutations

STEPS = 24
#: When the victim dies: after a step, somewhat later, or in a stage of a save.
MOMENTS = ("step", "delay", "before", "during", "after", "committed")
#: What is wrong -> the check that must fail.
CHECK_OF = {"newest": "resumed-newest", "fallback": "resumed-newest", "stale": "resumed-newest"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, killed in a way: ``every`` steps a checkpoint, rank ``victim`` dies at ``moment`` once it has made ``kill`` steps.

    ``ranks``: of the attempt that resumes. ``wrong``: what is wrong with its resumption. ``is_torn``: the newest file is damaged.
    """

    program: mutations.Program
    every: int
    kill: int
    victim: int
    ranks: int
    seed: int
    width: int
    moment: str = "step"
    delay_s: float = 0.0
    wrong: str = ""
    is_torn: bool = False

    def argv(self, attempt: int) -> list[str]:
        seed = self.seed + (attempt if self.wrong == "seed" else 0)
        options = {"steps": STEPS, "every": self.every, "seed": seed, "width": self.width}
        return ["train.py", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    def describe(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "program": self.program.name}


def cases(seed: int, right: int, wrong: int, only: str = "") -> Iterator[Case]:
    """Every program with other intervals, sizes, seeds, moments and victims; then with every fault that it can have."""
    dice = random.Random(seed)
    jobs = [p for p in mutations.programs() if any(word in p.name for word in only.split(","))]
    for index in range(right):
        yield _right(dice, jobs[index % len(jobs)], index // len(jobs))
    wrongs = [(program, name) for program in jobs for name in program.wrongs()]
    dice.shuffle(wrongs)
    for index in range(wrong):
        program, name = wrongs[index % len(wrongs)]
        case = _case(dice, program)
        yield dataclasses.replace(case, wrong=name, is_torn=name == "fallback")


def _case(dice: random.Random, program: mutations.Program) -> Case:
    every = dice.choice((3, 4, 5))
    return Case(
        program=program,
        every=every,
        kill=2 * every + dice.randint(1, every - 1),
        victim=dice.randrange(program.ranks),
        ranks=program.ranks,
        seed=dice.randrange(1000),
        width=dice.choice((16, 24, 32, 48)),
    )


def _right(dice: random.Random, program: mutations.Program, variant: int) -> Case:
    """The variants of a program: most die after a step, others a while later or in a save; some resume with other files or ranks."""
    case = _case(dice, program)
    case = dataclasses.replace(case, kill=case.kill + dice.randint(0, 1))
    moment = MOMENTS[(variant - 8) % len(MOMENTS)] if variant % 15 >= 8 and program.is_atomic else "step"
    if moment == "delay":
        return dataclasses.replace(case, moment=moment, kill=case.kill - 2, delay_s=dice.random() * 0.03)
    if moment != "step":
        return dataclasses.replace(case, moment=moment, kill=case.every * dice.choice((2, 3)), victim=0)
    if variant % 15 == 3 and program.is_elastic:
        return dataclasses.replace(case, ranks=dice.choice((1, 3)))
    return dataclasses.replace(case, is_torn=variant % 5 == 4 and "fallback" in program.wrongs())


# --- running ------------------------------------------------------------------------------------------------------------


def run_case(case: Case, directory: Path) -> tuple[str, bool]:
    """Two attempts of the job in ``directory``; the records lie in ``records``.

    Returns what went otherwise than planned, and whether the second attempt was started.
    """
    (directory / "records").mkdir(parents=True)
    (directory / "train.py").write_text(case.program.with_fault(case.wrong))
    if (code := attempt(case, directory, 0)[case.victim]) != -signal.SIGKILL:
        return f"the victim left with {code} before it was to be killed", False
    if not change_checkpoints(case, directory / "checkpoints"):
        return "there are no two checkpoints", False
    codes = {*attempt(case, directory, 1).values()}
    return ("" if codes == {0} else f"the second attempt left with {sorted(codes)}"), True


def change_checkpoints(case: Case, checkpoints: Path) -> bool:
    if case.is_torn:
        return mutations.tear_newest(checkpoints)
    if case.wrong == "stale":
        return mutations.replace_newest(checkpoints)
    if case.wrong == "newest":
        return mutations.turn_back_pointer(checkpoints) or len(mutations.groups(checkpoints)) > 1
    return True


def attempt(case: Case, directory: Path, number: int) -> dict[int, int]:
    """Start the ranks and wait for the code of each; where one was killed, the others are killed as a launcher does."""
    ranks = case.ranks if number else case.program.ranks
    port = _free_port()
    running = {_fork(case, directory, number, rank, ranks, port): rank for rank in range(ranks)}
    codes: dict[int, int] = {}
    deadline = time.monotonic() + 300
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        if (pid and status) or time.monotonic() > deadline:
            for other in running:
                os.kill(other, signal.SIGKILL)
        if not pid:
            time.sleep(0.005)
    return codes


def _free_port() -> int:
    """A port below those that the kernel gives to connections: another process does not take it before the ranks do."""
    while True:
        port = random.randrange(12000, 30000)
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def _fork(case: Case, directory: Path, number: int, rank: int, ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(directory)
        log = os.open(f"log-{number}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "CCBED_EPOCH": str(number), "CCBED_WATCH": str(directory / "records"),
        }  # fmt: skip
        _watch(case if number == 0 and rank == case.victim else None)
        sys.argv = case.argv(number)
        runpy.run_path("train.py", run_name="__main__")
        atexit._run_exitfuncs()
        code = 0
    except BaseException:  # noqa: BLE001 the log of the rank has it
        traceback.print_exc()
    finally:
        os._exit(code)


def _watch(victim_of: Case | None) -> None:
    from orchestrator.rank.watcher import install, steps
    from orchestrator.rank.watcher.checkpoints import saves

    install.install(os.environ["CCBED_WATCH"], via="warm")
    if victim_of is None:
        return
    case = victim_of

    def die(_: int) -> None:
        if steps.completed() >= case.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def die_later(n: int) -> None:
        if n == case.kill:
            threading.Timer(case.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    if case.moment in ("step", "delay"):
        steps.on_step(die if case.moment == "step" else die_later)
    else:
        saves.observe(case.moment, die)


# --- judging ------------------------------------------------------------------------------------------------------------


def verdicts(records: Path) -> dict[str, Verdict]:
    run = Run(
        directory=str(records),
        trial=Trial(name="job", workload="script"),
        history=History(()),
        files=recorded_files.WatchDirectory(records),
    )
    return {v.check: v for v in judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in CHECKS])}


CATALOGUE = plugins.discover(())


def outcome(given: dict[str, Verdict]) -> str:
    outcomes = {verdict.outcome for verdict in given.values()}
    return "fail" if "fail" in outcomes else "unknown" if "unknown" in outcomes else "pass"


def names_the_part(case: Case, given: dict[str, Verdict]) -> bool:
    """Whether the verdicts name what is wrong."""
    if case.wrong in CHECK_OF:
        return given[CHECK_OF[case.wrong]].outcome == "fail"
    if case.wrong == "ranks":
        return any(v.outcome == "fail" and "rank 1" in v.text for v in given.values())
    rows = (given["resume-complete"].evidence.get("rows") or {}).get("attempt 1") or {}
    parts = mutations.PARTS["weights" if case.wrong == "seed" else case.wrong]
    is_foreign = case.wrong in ("weights", "seed") and given["resumed-from"].outcome == "fail"
    return is_foreign or any(rows.get(part, {}).get("result") == "fail" for part in parts)


def unknown_rows(given: dict[str, Verdict]) -> list[str]:
    rows = (given["resume-complete"].evidence.get("rows") or {}).get("attempt 1") or {}
    return [f"{part}: {row.get('text', '')}" for part, row in rows.items() if row.get("result") == "unknown"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--right", type=int, default=20)
    parser.add_argument("--wrong", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="parts of the names of programs, with commas between them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds after which no case is begun")
    options = parser.parse_args(arguments)
    _import_torch()
    begun = time.monotonic()
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    named = rows = 0
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "cases.jsonl").open("a") as log:
        for index, case in enumerate(cases(options.seed, options.right, options.wrong, options.only)):
            if time.monotonic() - begun > options.limit:
                break
            record = _try(case, options.out.absolute() / f"case-{index:03d}")
            tally[f"wrong: {case.wrong}" if case.wrong else "right", record["outcome"]] += 1
            named += record["named"]
            rows += bool(record["unknown"]) and not case.wrong
            log.write(json.dumps({"case": index, **record, **case.describe()}) + "\n")
            log.flush()
    for (kind, result), count in sorted(tally.items()):
        print(f"{kind:<20} {result:<8} {count}")
    wrong = sum(count for (kind, result), count in tally.items() if kind != "right" and result != "not run")
    print(f"part named: {named} of {wrong}; right ones with unknown rows: {rows}; {time.monotonic() - begun:.0f} s")


def _try(case: Case, directory: Path) -> dict[str, Any]:
    """Run and judge a case. ``not run``: it did not become what it was to be."""
    problem, is_ready = run_case(case, directory)
    given = verdicts(directory / "records")
    is_void = not is_ready or bool(problem and not case.wrong)
    texts = {name: f"{v.outcome}: {v.text}" for name, v in given.items() if v.outcome != "pass"}
    return {
        "kind": "wrong" if case.wrong else "right",
        "outcome": "not run" if is_void else outcome(given),
        "problem": problem,
        "named": bool(case.wrong) and not is_void and names_the_part(case, given),
        "unknown": unknown_rows(given),
        "verdicts": texts,
    }


def _import_torch() -> None:
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.distributed.checkpoint.optimizer
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.tensor.parallel
    import torch.optim.swa_utils

    torch.set_num_threads(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
