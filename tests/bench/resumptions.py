"""Right and wrong resumptions of many scripts, killed for real, and what the verdicts on them are.

python -m tests.bench.resumptions --right 300 --wrong 300 --out DIRECTORY

Every case is a job of two ranks: processes forked from this one, which has imported torch. One of them kills itself by
SIGKILL after a step, the other one is killed; then the job is started again. No bed, no orchestrator.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import plugins
from orchestrator.cli.verbs.judge import CHECKS
from orchestrator.core.verdict import judge
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.model.verdict import Verdict
from orchestrator.store import files

SCRIPT = Path(__file__).parent / "programs" / "resumable.py"
WORLD = 2
#: Twenty scripts: options of ``resumable.py``.
SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("--optimizer", "sgd"),
    ("--optimizer", "momentum", "--scheduler", "step"),
    ("--optimizer", "adam", "--scheduler", "cosine"),
    ("--optimizer", "adamw", "--scheduler", "lambda", "--model", "dropout"),
    ("--optimizer", "rmsprop", "--data", "epoch"),
    ("--optimizer", "adagrad", "--data", "epoch", "--saves", "replace"),
    ("--optimizer", "adam", "--model", "bn"),
    ("--optimizer", "adamw", "--model", "bn", "--data", "epoch", "--scheduler", "onecycle"),
    ("--optimizer", "adam", "--scaler", "--saves", "replace"),
    ("--optimizer", "momentum", "--scaler", "--model", "dropout", "--scheduler", "step"),
    ("--optimizer", "adam", "--data", "torch"),
    ("--optimizer", "momentum", "--data", "torch", "--model", "dropout", "--saves", "replace"),
    ("--optimizer", "adamw", "--data", "numpy", "--scheduler", "cosine"),
    ("--optimizer", "sgd", "--data", "numpy", "--saves", "inplace"),
    ("--optimizer", "adam", "--data", "python", "--scheduler", "lambda"),
    ("--optimizer", "rmsprop", "--data", "python", "--model", "dropout", "--saves", "replace"),
    ("--optimizer", "adam", "--accumulate", "2"),
    ("--optimizer", "adamw", "--accumulate", "3", "--data", "epoch", "--scheduler", "step"),
    ("--optimizer", "momentum", "--data", "epoch", "--model", "dropout", "--scheduler", "lambda", "--saves", "inplace"),
    ("--optimizer", "adam", "--model", "dropout", "--scaler", "--scheduler", "onecycle", "--accumulate", "2"),
)
#: What is forgotten -> the row of ``resume-complete`` that must fail, or the check.
WRONG = {
    "weights": "weights",
    "optimizer": "optimizer",
    "scheduler": "learning rate",
    "scaler": "scaler",
    "rng": "RNG",
    "data": "data position",
    "ranks": "rank 1",
    "newest": "resumed-newest",
    "fallback": "resumed-newest",
    "stale": "resumed-newest",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script, killed in a way: ``every`` steps a checkpoint, rank ``victim`` dies after step ``kill``."""

    script: int
    every: int
    kill: int
    victim: int
    forget: str = ""
    torn: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        forget = ("--forget", self.forget) if self.forget and self.forget != "stale" else ()
        return (*SCRIPTS[self.script], "--every", str(self.every), *forget)

    def has(self, *words: str) -> bool:
        return any(word in SCRIPTS[self.script] for word in words)


def cases(seed: int, right: int, wrong: int) -> Iterator[Case]:
    """Every script with other intervals, other steps at which it dies and other victims; then those that forget a part."""
    dice = random.Random(seed)
    for index in range(right):
        case = _case(dice, index % len(SCRIPTS))
        yield _with(case, torn=index % 15 == 7 and not case.has("replace", "inplace"))
    made = 0
    for index, forget in enumerate(_cycle(dice)):
        if made == wrong:
            return
        case = _case(dice, index % len(SCRIPTS))
        if applies(case, forget):
            made += 1
            yield _with(case, forget=forget, torn=forget == "fallback")


def _cycle(dice: random.Random) -> Iterator[str]:
    while True:
        yield dice.choice(list(WRONG))


def _case(dice: random.Random, script: int) -> Case:
    every = dice.choice((3, 4, 5))
    return Case(script=script, every=every, kill=2 * every + dice.randint(2, every), victim=dice.randrange(WORLD))


def _with(case: Case, *, forget: str = "", torn: bool = False) -> Case:
    return Case(script=case.script, every=case.every, kill=case.kill, victim=case.victim, forget=forget, torn=torn)


def applies(case: Case, forget: str) -> bool:
    """Whether forgetting this makes the resumption wrong at all."""
    if forget in ("newest", "fallback", "stale"):
        return not case.has("replace", "inplace")
    if forget == "optimizer":
        return not case.has("sgd")
    if forget == "scheduler":
        return case.has("--scheduler")
    if forget == "scaler":
        return case.has("--scaler")
    if forget == "rng":
        return case.has("dropout", "torch", "numpy", "python")
    if forget == "data":
        return not case.has("torch", "numpy", "python")
    return True


# --- running ------------------------------------------------------------------------------------------------------------


def run_case(case: Case, directory: Path) -> None:
    """Two attempts of the job in ``directory``; the records lie in ``records``."""
    (directory / "records").mkdir(parents=True)
    attempt(case, directory, 0)
    newest = max(directory.glob("checkpoints/step-*.pt"), key=_number, default=None)
    if case.torn and newest:
        os.truncate(newest, newest.stat().st_size // 2)
    if case.forget == "stale" and newest:
        older = sorted(directory.glob("checkpoints/step-*.pt"), key=_number)[-2]
        newest.write_bytes(older.read_bytes())
    attempt(case, directory, 1)


def _number(file: Path) -> int:
    return int(file.stem.split("-")[1])


def attempt(case: Case, directory: Path, number: int) -> None:
    """Start the ranks and wait; where one was killed, the others are killed as a launcher does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    pids = {_fork(case, directory, number, rank, port) for rank in range(WORLD)}
    deadline = time.monotonic() + 60
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            pids.discard(pid)
            if status:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
        elif time.monotonic() > deadline:
            for other in pids:
                os.kill(other, signal.SIGKILL)
        else:
            time.sleep(0.005)


def _fork(case: Case, directory: Path, number: int, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(directory)
        log = os.open(f"log-{number}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "CCBED_EPOCH": str(number), "CCBED_WATCH": str(directory / "records"),
        }  # fmt: skip
        _watch(case, number, rank)
        sys.argv = [str(SCRIPT), *case.options]
        runpy.run_path(str(SCRIPT), run_name="__main__")
        atexit._run_exitfuncs()
        code = 0
    except BaseException:  # noqa: BLE001 the log of the rank has it
        traceback.print_exc()
    finally:
        os._exit(code)


def _watch(case: Case, number: int, rank: int) -> None:
    from orchestrator.rank.watcher import install, steps

    install.install(os.environ["CCBED_WATCH"], via="warm")

    def die(n: int) -> None:
        if n == case.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    if number == 0 and rank == case.victim:
        steps.on_step(die)


# --- judging ------------------------------------------------------------------------------------------------------------


def verdicts(records: Path) -> dict[str, Verdict]:
    run = Run(
        directory=str(records),
        trial=Trial(name="job", workload="script"),
        history=History(()),
        files=files.WatchDirectory(records),
    )
    return {v.check: v for v in judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in CHECKS])}


CATALOGUE = plugins.discover(())


def outcome(given: dict[str, Verdict]) -> str:
    outcomes = {verdict.outcome for verdict in given.values()}
    return "fail" if "fail" in outcomes else "unknown" if "unknown" in outcomes else "pass"


def names_the_part(case: Case, given: dict[str, Verdict]) -> bool:
    """Whether the verdicts name what was forgotten."""
    part = WRONG[case.forget]
    rows = (given["resume-complete"].evidence.get("rows") or {}).get("attempt 1") or {}
    if part in given:
        return given[part].outcome == "fail"
    if part == "rank 1":
        return any(v.outcome == "fail" and "rank 1" in v.text for v in given.values())
    return bool(
        rows.get(part, {}).get("result") == "fail"
        or (part == "learning rate" and rows.get("scheduler", {}).get("result") == "fail")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--right", type=int, default=20)
    parser.add_argument("--wrong", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds after which no case is begun")
    options = parser.parse_args(arguments)
    import torch
    import torch._dynamo
    import torch.distributed

    torch.set_num_threads(1)
    begun = time.monotonic()
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    named = 0
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "cases.jsonl").open("a") as log:
        for index, case in enumerate(cases(options.seed, options.right, options.wrong)):
            if time.monotonic() - begun > options.limit:
                break
            directory = options.out / f"case-{index:03d}"
            run_case(case, directory)
            given = verdicts(directory / "records")
            kind = f"wrong: {case.forget}" if case.forget else "right"
            tally[kind, outcome(given)] += 1
            is_named = bool(case.forget) and names_the_part(case, given)
            named += is_named
            texts = {name: f"{v.outcome}: {v.text}" for name, v in given.items() if v.outcome != "pass"}
            log.write(json.dumps({"case": index, "options": case.options, "kill": case.kill, "victim": case.victim,
                "torn": case.torn, "kind": kind, "outcome": outcome(given), "named": is_named, "verdicts": texts}) + "\n")  # fmt: skip
            log.flush()
    for (kind, result), count in sorted(tally.items()):
        print(f"{kind:<20} {result:<8} {count}")
    wrong = sum(count for (kind, _), count in tally.items() if kind != "right")
    print(f"part named: {named} of {wrong}; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
