"""The job steps of a bed: one for each host, which runs the host's reverse links; the host agent and nodes are processes below it.

The container of a step: Pyxis has options of srun for it (as of 2025, ``args.c``), Apptainer is a command (``apptainer exec``). The bed's
directories keep their paths. Both use the host's network and processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model.bed import BedSpec, Machine
from ..model.errors import CcbedError, InfrastructureError
from ..model.frozen import dataclass, replace
from ..node.oslayer import processes
from ..system import host_facts, plain_files
from . import slurm_commands
from .allocation import SLURMD_PORT, Allocation

#: The variables of ccbed's environment that a step receives: Slurm's messages are not encrypted, so no secret may be there.
EXPORTED = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "USER")
#: The libraries of a node are not those of an image.
EXPORTED_TO_IMAGE = tuple(name for name in EXPORTED if name != "LD_LIBRARY_PATH")
#: Of the variables of Slurm and Pyxis only those that name the cluster reach srun: others would be options of the step.
_CLUSTER = ("SLURM_CONF", "SLURM_JWT")
_OPTIONS = ("PYXIS_", "SLURM_")
_TAIL = 2000
#: For so long the controller is not asked again for the steps that run, after a response and without one.
ASK_S, AWAY_S = 2.0, 30.0
ASK_DEADLINE_S = 5.0
_STEP = {"StepName": 64}
#: srun says so of --cpu-bind=none where the cluster binds nothing.
_NOISE = "cluster configuration lacks support for cpu binding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The srun of a host's step, on the machine that started it. ``node``: its name in Slurm.

    ``container``: see ``fingerprint``. ``options``: see ``_fixed_options``. ``is_ended``: Slurm has no such step any more.
    """

    job: int
    node: str
    machine: str
    boot: str
    pid: int
    start: int
    container: str = ""
    options: str = ""
    is_ended: bool = False


def step_command(bed: BedSpec, allocation: Allocation, host: str, archive: str) -> list[str]:
    """The command line of srun for a host's step.

    It has a node of its own and shares what the job has there (``--overlap``) without binding; it receives GPUs unless the
    bed has none. It ends with its node, not with the exit of another step (``--no-kill``, ``--kill-on-bad-exit=0``, ``--wait=0``).
    Raises InfrastructureError for a container that cannot be.
    """
    gres, roots = _fixed_options(bed, host)
    exported = EXPORTED_TO_IMAGE if fingerprint(bed) else EXPORTED
    return [
        "srun", f"--jobid={allocation.job_id}", f"--nodelist={slurm_node(allocation, host)}",
        "--nodes=1", "--ntasks=1", f"--job-name={_name(host)}", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap",
        *gres, "--mpi=none", "--cpu-bind=none", "--mem-bind=none", "--mem=0", "--input=none", f"--output={_pattern(bed, host)}",
        "--quiet", "--chdir=/", f"--export={','.join(exported)}", *srun_options(bed),
        *command(bed), python(bed), "-I", "-S", archive, "reverse", "--links", str(links(bed)), "--host", host,
        "--hostdir", bed.directory_on(host), "--bed", bed.name, *roots,
    ]  # fmt: skip


def _fixed_options(bed: BedSpec, host: str) -> tuple[list[str], list[str]]:
    """Return what a step keeps from its start: whether it has GPUs, and the directories from which files are fetched."""
    gres = [] if any(node.gpus for node in bed.nodes if node.host == host) else ["--gres=none"]
    return gres, [part for root in (bed.shared_dir, bed.data_dir) if root for part in ("--root", root)]


def python(bed: BedSpec) -> str:
    """The interpreter on the nodes. Without one in the inventory it is that of the image, or this one, which must be on the
    shared file system.
    """
    return bed.nodes[0].python or ("python3" if fingerprint(bed) else sys.executable)


def links(bed: BedSpec) -> Path:
    """The directory of certificate, tokens and listeners, on the file system that all nodes share."""
    return Path(bed.hostdir) / "links"


def log(bed: BedSpec, host: str) -> Path:
    """The output of a step, on the shared file system. The node writes it: srun carries none of it."""
    return Path(bed.hostdir) / "steps" / f"{host}.0.log"


def _pattern(bed: BedSpec, host: str) -> str:
    """``log`` as srun reads it. A file name without the number of the task (%t) would be written where srun runs."""
    return str(log(bed, host).parent).replace("%", "%%") + f"/{host}.%t.log"


def _name(host: str) -> str:
    return f"ccbed-{host}"


def start(bed: BedSpec, allocation: Allocation, host: str, archive: str) -> None:
    """Start the step of a host in the background: its srun outlives this process. Raises OSError."""
    for directory in (log(bed, host).parent, _record(bed, host).parent):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for outdated in (log(bed, host), _answer(bed)):
        outdated.unlink(missing_ok=True)
    argv = step_command(bed, allocation, host, archive)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS) or name in _CLUSTER}
    with open(plain_files.create_file(_errors(bed, host)), "wb") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=kept, cwd="/", start_new_session=True
        )
    step = Step(
        job=allocation.job_id,
        node=slurm_node(allocation, host),
        machine=host_facts.machine_id(),
        boot=host_facts.boot_id(),
        pid=process.pid,
        start=processes.start_time(process.pid),
        container=fingerprint(bed),
        options=str(_fixed_options(bed, host)),
    )
    _write(bed, host, step)


def end_reason(bed: BedSpec, allocation: Allocation, host: str) -> str:
    """Return why the host has no step in this job; empty if its step runs, or if that is not known.

    A step outlives a killed srun: for seconds if one of srun's two processes is left, else for good. Slurm knows its end.
    A step that another machine started is taken to run.
    """
    step = _read(bed, host)
    if step is None or step.job != allocation.job_id:
        return f"job {allocation.job_id} has no step on {slurm_node(allocation, host)}"
    if step.container != fingerprint(bed):
        return f"its job step on {step.node} runs with another ccbed_container, ccbed_image or ccbed_mounts"
    if step.options and step.options != str(_fixed_options(bed, host)):
        return f"its job step on {step.node} runs with another ccbed_shared_dir, ccbed_data_dir or without ccbed_gpus"
    if step.machine != host_facts.machine_id() or _is_own(step):
        return ""
    if not step.is_ended and not _has_ended(bed, host, step):
        return ""
    output = explain(bed, host)
    return f"its job step on {step.node} has ended" + (f": {output}" if output else "")


def explain(bed: BedSpec, host: str) -> str:
    """Return why a step does not respond, from its own output and that of its srun; empty if there is none."""
    texts = (plain_files.tail_text(path, _TAIL) for path in (log(bed, host), _errors(bed, host)))
    lines = [[line for line in text.strip().splitlines() if _NOISE not in line][-3:] for text in texts]
    return " / ".join(line for part in lines for line in part)


def end(bed: BedSpec, hosts: Iterable[str], deadline_s: float) -> list[str]:
    """End the steps whose srun is on this machine: on SIGTERM it ends its step first. The hosts whose srun did not end."""
    steps = {host: step for host in hosts if (step := _read(bed, host)) and _is_own(step)}
    for step in steps.values():
        processes.send_signal(_sruns(step), signal.SIGTERM)
    until = time.monotonic() + deadline_s
    while (left := [host for host, step in steps.items() if _is_alive(step)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def abandon(bed: BedSpec, host: str, deadline_s: float) -> None:
    """End the step of a host that was off: its srun cannot end what is gone, and is killed after ``deadline_s``."""
    if end(bed, [host], deadline_s) and (step := _read(bed, host)):
        processes.kill([*processes.descendants(step.pid), *_sruns(step)])


def forget(bed: BedSpec) -> None:
    """Remove the records of all steps. They are renamed first, so that a thread that records the end of a step leaves no file."""
    records = _records(bed)
    removed = records.with_name("steps.removed")
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(FileNotFoundError):
        records.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _sruns(step: Step) -> list[processes.Process]:
    process = processes.find(step.pid)
    return [process] if process else []


def _has_ended(bed: BedSpec, host: str, step: Step) -> bool:
    """Return whether Slurm has no such step any more; False while the controller does not respond."""
    running = _running_steps(bed, step.job)
    if running is None or _name(host) in running:
        return False
    with suppress(FileNotFoundError):  # the bed is down by now
        _write(bed, host, replace(step, is_ended=True))
    return True


def _running_steps(bed: BedSpec, job_id: int) -> list[str] | None:
    """The names of the job's steps that run; None: not known. At most one RPC in ASK_S for all hosts of the bed."""
    answer = plain_files.read_json(_answer(bed))
    names: list[str] | None = answer.get("names")
    age_s = time.monotonic() - answer.get("at", math.inf)
    if answer.get("job") == job_id and 0.0 <= age_s < (AWAY_S if names is None else ASK_S):
        return names
    argv = ["squeue", "--steps", "--noheader", f"--jobs={job_id}", slurm_commands.format_option(_STEP)]
    try:
        output = slurm_commands.run(argv, ASK_DEADLINE_S)
        names = [row["StepName"] for row in slurm_commands.rows(output, _STEP)]
    except CcbedError:
        names = None
    with suppress(FileNotFoundError):
        plain_files.write_json(_answer(bed), {"job": job_id, "at": time.monotonic(), "names": names})
    return names


def _is_own(step: Step) -> bool:
    return step.machine == host_facts.machine_id() and step.boot == host_facts.boot_id() and _is_alive(step)


def _is_alive(step: Step) -> bool:
    """A child of this process that has exited is a zombie: it is reaped first."""
    try:
        os.waitpid(step.pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return processes.is_alive(step.pid, step.start)


def _read(bed: BedSpec, host: str) -> Step | None:
    content: Mapping[str, Any] = plain_files.read_json(_record(bed, host))
    try:
        return Step(**content)
    except TypeError:
        return None


def _write(bed: BedSpec, host: str, step: Step) -> None:
    plain_files.write_json(_record(bed, host), {name: getattr(step, name) for name in Step.__slots__})


def _records(bed: BedSpec) -> Path:
    return Path(bed.workdir) / "steps"


def _record(bed: BedSpec, host: str) -> Path:
    return _records(bed) / f"{host}.json"


def _answer(bed: BedSpec) -> Path:
    return _records(bed) / "running.json"


def _errors(bed: BedSpec, host: str) -> Path:
    return _records(bed) / f"{host}.srun"


def slurm_node(allocation: Allocation, host: str) -> str:
    """``hN`` is the N-th node of the job, also for a bed from which hosts that were lost are left out."""
    return allocation.nodes[_number(host)]


def machine(allocation: Allocation, host: str) -> Machine:
    """The node that a host is, and where its slurmd listens."""
    number = _number(host)
    name = allocation.nodes[number]
    port = allocation.ports[number] if number < len(allocation.ports) else SLURMD_PORT
    address = allocation.addresses[number]
    return Machine(name=name, address=address, port=port, is_own=_is_own_name(name) or _is_own_address(address))


def _is_own_name(name: str) -> bool:
    """Return whether Slurm may know this machine by the name, with or without its domain. In a job Slurm says it itself."""
    own = (socket.gethostname(), os.environ.get("SLURMD_NODENAME", ""))
    return name.partition(".")[0] in {known.partition(".")[0] for known in own}


def _is_own_address(address: str) -> bool:
    """Return whether this machine has the address: only then a socket can be bound to it."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as bound:
                bound.bind(place)
                return True
    except OSError:
        pass
    return False


def _number(host: str) -> int:
    return int(host.removeprefix("h"))


#: The user's values of these replace those of the image.
_USER = ("HOME", "LANG", "LOGNAME", "USER")


def fingerprint(bed: BedSpec) -> str:
    """Identifies the container that the inventory asks for; empty without one."""
    spec = bed.slurm
    if spec is None or spec.container == "none":
        return ""
    return hashlib.sha256(json.dumps([spec.container, spec.image, _mounts(bed)]).encode()).hexdigest()[:12]


def srun_options(bed: BedSpec) -> list[str]:
    """The options of Pyxis. The directory of the user is not mounted: Python would take packages from it, not from the image.

    Raises InfrastructureError if the image cannot be read, or a path cannot be mounted.
    """
    if bed.slurm is None or bed.slurm.container != "pyxis":
        return []
    return [
        f"--container-image={bed.slurm.image}", f"--container-name={_container_name(bed)}",
        f"--container-mounts={_joined_mounts(bed)}", f"--container-env={','.join(_USER)}",
        "--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint",
    ]  # fmt: skip


def command(bed: BedSpec) -> list[str]:
    """Return what precedes the program of the step: the command of Apptainer. Raises InfrastructureError."""
    if bed.slurm is None or bed.slurm.container != "apptainer":
        return []
    gpus = ["--nv"] if any(node.gpus for node in bed.nodes) else []
    return ["apptainer", "exec", "--no-home", *gpus, f"--bind={_joined_mounts(bed)}", bed.slurm.image]


def _joined_mounts(bed: BedSpec) -> str:
    mounts = _mounts(bed)
    if wrong := [mount for mount in mounts if "," in mount or mount.count(":") > 2]:
        raise InfrastructureError(
            f"{wrong[0]}: cannot be mounted into a container: a comma or colon separates mounts",
            hint="set ccbed_workdir to a path without them",
        )
    return ",".join(mounts)


def _mounts(bed: BedSpec) -> list[str]:
    """``source:target[:ro]``: the bed's directories under their own paths, then those of the inventory."""
    assert bed.slurm is not None
    own = dict.fromkeys(path for path in (bed.hostdir, bed.shared_dir, bed.data_dir) if path)
    return [*(f"{path}:{path}" for path in own), *bed.slurm.mounts]


def _container_name(bed: BedSpec) -> str:
    """Steps of one job use a container of this name again. A changed image file gets another name."""
    assert bed.slurm is not None
    try:
        status = Path(bed.slurm.image).stat()
    except OSError as error:
        raise InfrastructureError(
            f"{bed.inventory}: ccbed_image: {bed.slurm.image}: {error.strerror}",
            hint="the image must be on a file system that this machine and all nodes share",
        ) from None
    content = f"{bed.slurm.image} {status.st_size} {status.st_mtime_ns}"
    return f"ccbed-{bed.name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
