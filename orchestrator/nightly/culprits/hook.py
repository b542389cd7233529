"""Nodes that a night accuses: an archive of the evidence for the vendor, and the call of a command that takes the node out."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import paths, unpack
from ..night_judgement import Judged, NightJudgement
from ..run_record import nodes_of
from ..suite import RUNS, Night

EVIDENCE = "evidence"
DEADLINE_S = 60.0
#: Bytes of the errors of a command that are shown.
_TAIL = 200
#: Kinds of culprits in a sweep that are one node. A link or direction accuses neither of its ends.
_NODE_KINDS = ("node", "egress", "ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """``reason``: the worst finding in words; ``runs``: the bundles that the findings rest on."""

    node: str
    host: str
    reason: str
    runs: tuple[str, ...]


def accused(night: Night, judgement: NightJudgement) -> tuple[Accused, ...]:
    """The nodes that a failure names, and those that a pair sweep names as a culprit."""
    by_node: dict[str, list[Judged]] = {}
    for judged in judgement.findings:
        for node in _nodes(judged, night.all_hosts):
            by_node.setdefault(node, []).append(judged)
    return tuple(
        Accused(
            node=node, host=night.host_of(node), reason=findings[0].finding.text,
            runs=tuple(dict.fromkeys(run for judged in findings for run in judged.runs)),
        )
        for node, findings in sorted(by_node.items())
    )  # fmt: skip


def _nodes(judged: Judged, hosts: Mapping[str, str]) -> set[str]:
    finding = judged.finding
    is_confirmed_pair = finding.gate == "pairs" and judged.state == "warn" and len(judged.runs) > 1
    if judged.state != "fail" and not is_confirmed_pair:
        return set()
    names = set(nodes_of(finding.node or "")) if len(nodes_of(finding.node or "")) == 1 else set()
    for culprit in finding.culprits:
        kind, _, name = culprit.rpartition(" ")
        if kind in ("", *_NODE_KINDS):
            names.add(name.partition(":")[0])
    return {name for name in names if name in hosts or "@" in name}


def is_common_cause(night: Night, culprits: Sequence[Accused]) -> bool:
    """Return whether so many nodes are accused that the cause is common to them: a driver, a floor that is wrong, a switch.

    Then no node is called out and none is put into quarantine: a command must not drain a cluster.
    """
    return len(culprits) > max(1, len(night.hosts) // 4)


def common_cause(night: Night, culprits: Sequence[Accused]) -> str:
    names = ", ".join(culprit.node for culprit in culprits[:4])
    return f"{len(culprits)} of {len(night.hosts)} nodes are accused ({names}, …): a common cause; none is called out or quarantined"


def write_evidence(directory: Path, culprit: Accused) -> Path:
    """Archive the night's own files and the bundles of the runs concerned. Raises OSError, TornBundleError."""
    target = directory / EVIDENCE / f"{culprit.node}.tar.gz"
    target.parent.mkdir(exist_ok=True)
    files = [entry.name for entry in sorted(directory.iterdir()) if entry.is_file() and not entry.is_symlink()]
    for run in culprit.runs:
        if (directory / RUNS / run).is_dir():
            files += [f"{RUNS}/{run}/{path}" for path in paths.walk(directory / RUNS / run)]
    unpack.pack(directory, files, target)
    return target


def check(command: str) -> None:
    """Raises UsageError for a command that cannot be split into words, or has none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--on-culprit: cannot be split into words: {error} (got {command!r})") from None
    if command and not (words and words[0]):
        raise UsageError(f"--on-culprit: names no program (got {command!r})")


def argv(command: str, culprit: Accused, night: Night, evidence: Path) -> list[str]:
    """The words of a command, with {node}, {host}, {reason}, {night} and {evidence} replaced. No shell reads it."""
    values = {
        "node": culprit.node, "host": culprit.host or culprit.node, "reason": culprit.reason, "night": night.name,
        "evidence": str(evidence),
    }  # fmt: skip
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def call(words: Sequence[str], deadline_s: float = DEADLINE_S) -> str:
    """Run a command; an empty text, or why it failed. It never changes the verdict."""
    reason = run_command(words, deadline_s)
    return f"{words[0]}: {reason}" if reason else ""


def run_command(words: Sequence[str], deadline_s: float, content: bytes = b"") -> str:
    """Run a command of the user with ``content`` as its input; an empty text, or why it failed. With its children it ends at the deadline.

    Files instead of pipes: a background process that it leaves behind must not count as its own time.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as errors:
        stdin.write(content)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                words, stdin=stdin, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
        try:
            process.wait(deadline_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"did not end within {deadline_s:g} s"
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
        lines = errors.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"exit code {process.returncode}{f': {last}' if last else ''}" if process.returncode else ""


def handle(
    directory: Path, night: Night, judgement: NightJudgement, command: str, *, is_applied: bool
) -> tuple[str, ...]:
    """Write the evidence of every accused node and call the command, or say what would be called. A sentence for each."""
    lines: list[str] = []
    culprits = accused(night, judgement)
    for culprit in culprits if not is_common_cause(night, culprits) else ():
        try:
            evidence = write_evidence(directory, culprit)
        except (OSError, paths.TornBundleError) as error:
            lines.append(f"{culprit.node}: its evidence cannot be archived: {error}")
            continue
        words = argv(command, culprit, night, evidence)
        if not is_applied:
            lines.append(f"{culprit.node}: would call: {shlex.join(words)}     to call it: --apply")
            continue
        reason = call(words)
        lines.append(
            f"{culprit.node}: the call failed: {reason}" if reason else f"{culprit.node}: called {shlex.join(words)}"
        )
    return tuple(lines)
