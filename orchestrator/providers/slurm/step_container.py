"""The container of a job step: Pyxis has options of srun for it, Apptainer is a command. The bed's directories keep their paths.

The options are those of Pyxis as of 2025 (``args.c``) and of ``apptainer exec``. Both use the host's network and processes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ...model.bed import BedSpec
from ...model.errors import InfrastructureError

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
        f"--container-image={bed.slurm.image}", f"--container-name={_name(bed)}",
        f"--container-mounts={_joined_mounts(bed)}", f"--container-env={','.join(_USER)}",
        "--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint",
    ]  # fmt: skip


def command(bed: BedSpec) -> list[str]:
    """What precedes the program of the step: the command of Apptainer. Raises InfrastructureError."""
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


def _name(bed: BedSpec) -> str:
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
