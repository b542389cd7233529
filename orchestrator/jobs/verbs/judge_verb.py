"""Judge a training job from the records of ccbed-watch, without a bed."""

from __future__ import annotations

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ...cli.render import summary_lines
from ...core.verdict import sentence
from ..app import judged_records
from ..app.judged_records import JudgeRequest


@options.shows(JudgeRequest, judged_records.judge_records)
def command(session: Session, judged: judged_records.Judged) -> None:
    """Judge the job whose processes recorded into DIRECTORY: from which step it resumed, with what, and what was lost.

    \b
    ccbed-watch --dir records -- torchrun --nproc-per-node 2 --max-restarts 3 train.py
    ccbed judge records
    """
    terminal = session.terminal
    for name, (ranks, last) in judged.attempts.items():
        terminal.line(f"{name}: {sentence.count(ranks, 'rank')}, {sentence.count(last, 'step')}")
    for problem in judged.incomplete:
        terminal.warn(problem)
    terminal.lines(summary_lines.verdicts(terminal, judged.verdicts))
