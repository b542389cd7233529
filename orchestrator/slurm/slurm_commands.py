"""Slurm's client programs: each runs with a deadline, and each of their errors becomes a sentence with a next step.

Output is read by explicit ``--Format`` with fixed widths, because it has the same meaning in all versions. ``--json`` of 22.05
ignores every filter and returns the whole queue, and the parsers that newer versions can pin differ from version to version.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from ..model.errors import CcbedError, InfrastructureError, UsageError

DEADLINE_S = 20.0
#: A user's own defaults for these programs would change what ccbed reads, and which jobs scancel ends.
_OUTPUT_SETTINGS = ("SCANCEL_", "SQUEUE_", "SINFO_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
_NOISE = re.compile(r"^(?:\w+: )?(?:(?:fatal|error|info): )?")
_LATER = "try again once `scontrol ping` reports the controller as UP"
_PARTITIONS = "the partitions: sinfo --summarize"
#: (what Slurm writes, whether the user's input is wrong, the sentence, the next step). The first that occurs applies.
_ERRORS: Sequence[tuple[str, bool, str, str]] = (
    (r"unrecognized option '--?([^'=]+)", True, "Slurm has no option {0}", "correct ccbed_sbatch; `salloc --help` lists the options"),
    (r"(?:[Ii]nvalid|for) (--[\w-]+)", True, "Slurm rejects the value of {0}", "correct ccbed_sbatch or the variable of that name"),
    (r"invalid partition specified: (\S+)", True, "Slurm has no partition {0}", f"correct ccbed_partition; {_PARTITIONS}"),
    (r"Invalid partition name", True, "Slurm has no such partition", f"correct ccbed_partition; {_PARTITIONS}"),
    (r"User's group not permitted", True, "your group may not use this partition", f"choose another ccbed_partition; {_PARTITIONS}"),
    (r"account or account/partition combination", True, "Slurm has no such account, or it may not use this partition",
     "correct ccbed_account; your accounts: sacctmgr show associations user=$USER"),
    (r"Invalid qos", True, "Slurm has no such quality of service, or your account may not use it",
     "correct ccbed_qos; yours: sacctmgr show associations user=$USER format=account,qos"),
    (r"time limit is invalid", True, "the time limit exceeds a limit of Slurm", "set a shorter ccbed_time; limits: sinfo --summarize"),
    (r"Invalid node name", True, "Slurm has no node of that name", "correct ccbed_nodelist and ccbed_exclude; the nodes: sinfo --Node"),
    (r"Invalid feature specification", True, "no node has these features", "correct ccbed_constraint; features: sinfo -o '%n %f'"),
    (r"generic resource \(gres\) specification", True, "no node has these resources", "correct ccbed_gres; resources: sinfo -o '%n %G'"),
    (r"reservation is invalid|Access to reservation|[Rr]equested reservation", True, "Slurm has no such reservation, or you may not use it",
     "correct ccbed_reservation; reservations: scontrol show reservation"),
    (r"violates accounting/QOS policy", True, "the job exceeds a limit of your account or quality of service",
     "ask for fewer nodes or less time; limits: sacctmgr show associations user=$USER"),
    (r"node configuration is not available|Node count specification invalid|More processors requested", True,
     "the partition does not have the nodes that the job asks for", "ask for fewer nodes or other resources; the nodes: sinfo -N -l"),
    (r"partition configuration not available|Required partition not available", False, "the partition accepts no jobs now",
     f"choose another ccbed_partition, or wait; {_PARTITIONS}"),
    (r"Invalid job id", True, "Slurm has no such job", "your jobs: squeue --me"),
    (r"[Mm]unge|MUNGE|Protocol authentication error|authentication credential", False,
     "munge, which identifies users to Slurm, does not respond here, or rejects its key",
     "ask the administrator to start munged on this machine"),
    (r"Access/permission denied|permission denied", True, "Slurm does not permit this to you", "ask the administrator of the cluster"),
    (r"Unable to contact slurm controller|Connection refused|connect failure|Socket timed out|Zero Bytes were transmitted", False,
     "Slurm's controller does not respond", _LATER),
    (r"Could not establish a configuration source|could not find|Unable to process configuration", False,
     "this machine has no configuration of Slurm", "run ccbed on a login node of the cluster, or set SLURM_CONF"),
)  # fmt: skip


class SlurmError(InfrastructureError):
    """Slurm cannot do it now: its controller, munge, or the cluster's state."""


class SlurmUsageError(UsageError):
    """Slurm rejects the request: unknown names, missing permissions, limits."""


def environment() -> dict[str, str]:
    """The environment of every client: times in seconds since the epoch, messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OUTPUT_SETTINGS)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def run(argv: Sequence[str], deadline_s: float | None = None) -> str:
    """The output of a client, within DEADLINE_S unless another deadline is set; bytes that are not UTF-8 as surrogates.

    Raises SlurmUsageError or SlurmError, with the command.
    """
    deadline_s = DEADLINE_S if deadline_s is None else deadline_s
    try:
        done = subprocess.run(
            argv, capture_output=True, env=environment(), timeout=deadline_s, check=False, stdin=subprocess.DEVNULL
        )  # fmt: skip
    except FileNotFoundError:
        raise missing_client(argv[0]) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{argv[0]}: no response from Slurm's controller within {deadline_s:g} s", hint=_LATER
        ) from None
    if done.returncode:
        raise explain(argv, (done.stderr or done.stdout).decode(errors="replace"))
    return done.stdout.decode(errors="surrogateescape")


def missing_client(program: str) -> SlurmError:
    return SlurmError(
        f"{program}: Slurm's clients are not installed on this machine", hint="run ccbed on a login node of the cluster"
    )


def explain(argv: Sequence[str], output: str) -> CcbedError:
    """The error of a client that failed: what it means, then Slurm's own words."""
    message = "; ".join(dict.fromkeys(_NOISE.sub("", line).strip() for line in output.splitlines() if line.strip()))
    quoted = f"{argv[0]}: {message[:400] or 'no output'}"
    for pattern, is_usage, sentence, step in _ERRORS:
        if match := re.search(pattern, output):
            kind = SlurmUsageError if is_usage else SlurmError
            return kind(f"{sentence.format(*match.groups())} ({quoted})", hint=step)
    return SlurmError(quoted, hint=f"the command was: {shlex.join(argv)}")


def rows(output: str, widths: Mapping[str, int]) -> list[dict[str, str]]:
    """The rows of ``format_option(widths)``: field -> text. Slurm cuts and fills by bytes, so the text is cut by bytes.

    Rows have one length, because the text of users may have newlines.
    """
    content, result = output.encode(errors="surrogateescape"), []
    for row_start in range(0, len(content), sum(widths.values()) + len("\n")):
        row, start = {}, row_start
        for name, width in widths.items():
            row[name] = content[start : start + width].decode(errors="replace").strip()
            start += width
        result.append(row)
    return result


def format_option(widths: Mapping[str, int]) -> str:
    return "--Format=" + ",".join(f"{name}:{width}" for name, width in widths.items())
