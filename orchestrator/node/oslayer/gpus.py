"""Facts of the NVIDIA GPUs of this host: driver and models from /proc, health and full report from nvidia-smi."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: What the health check queries of each GPU.
HEALTH_FIELDS = ("index", "uuid", "name", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending")
#: The values of a healthy GPU, by field.
HEALTHY_VALUES = {HEALTH_FIELDS[3]: ("0", "[N/A]"), HEALTH_FIELDS[4]: ("No", "[N/A]")}
_DRIVER = "proc/driver/nvidia"


def driver_facts(root: Path = Path("/")) -> dict[str, Any]:
    """``driver``: its version; ``gpus``: the models by PCI address; ``vbios``: their firmware, where the driver shows it.

    Empty if no driver is loaded. Does not touch a GPU.
    """
    try:
        with open(root / _DRIVER / "version") as file:
            line = file.readline().strip()
    except OSError:
        return {}
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    files = sorted((root / _DRIVER / "gpus").glob("*/information"))
    firmware = [_field(path, "Video BIOS") for path in files]
    return {
        "driver": version[1] if version else line, "gpus": [_field(path, "Model") for path in files],
        **({"vbios": firmware} if set(firmware) - {"unknown"} else {}),
    }  # fmt: skip


def check_health(limit_s: float = 2.0) -> dict[str, Any]:
    """``{count, problems}`` from nvidia-smi; ``{reason}`` if it cannot be run or fails."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(HEALTH_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"reason": f"nvidia-smi: {error}"}
    if done.returncode:
        return {"reason": f"nvidia-smi: {(done.stderr or done.stdout).strip()[-200:]}"}
    return parse_health(done.stdout)


def parse_health(text: str) -> dict[str, Any]:
    """``{count, problems}`` from nvidia-smi's table of ``HEALTH_FIELDS``."""
    rows = [
        dict(zip(HEALTH_FIELDS, (cell.strip() for cell in row), strict=False))
        for row in csv.reader(text.splitlines())
        if row
    ]
    problems = [
        f"GPU {row.get('index')} ({row.get('name')}): {field} is {row.get(field)}"
        for row in rows
        for field, healthy in HEALTHY_VALUES.items()
        if row.get(field) not in healthy
    ]
    return {"count": len(rows), "problems": problems}


def start_report(path: Path) -> subprocess.Popen[bytes] | None:
    """Start nvidia-smi, which writes its full report as XML into a file. None if it is not installed. Raises OSError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    with open(path, "wb") as out:
        return subprocess.Popen(
            [program, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _field(path: Path, name: str) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return "unknown"
    match = re.search(rf"^{name}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else "unknown"
