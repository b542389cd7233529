"""Run a suite of trials as a night: compare it with earlier nights, report, and say what got slower."""

from __future__ import annotations

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ..app.night_requests import NightRequest


@options.verb(NightRequest, options.slurm_job)
def command(session: Session, request: NightRequest) -> int:
    """Run SUITE, a built-in one (quick, standard) or a file, on a bed; then compare, report, and exit by the verdict.

    \b
    ccbed nightly quick
    ccbed nightly suites/lab.yml --bed lab --record
    """
    from ..app import night_runs

    if request.dry_run and not request.resume:
        from ..render import night_lines

        night_lines.dry_run(session.terminal, night_runs.plan(session, request), as_json=session.is_json)
        return 0
    finished = night_runs.run(session, request)
    if session.is_json:
        session.terminal.json(finished.document)
    return finished.judgement.exit
