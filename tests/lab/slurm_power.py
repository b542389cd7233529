"""The power of a node of the lab's Slurm that has a network namespace of its own.

    python slurm_power.py off|on FOLDER NODE

Off: its link goes down, and everything that runs there is killed, so that no connection is closed properly. On: link and slurmd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def running(holder: int) -> list[int]:
    """The processes in the namespace, without the one that holds it."""
    namespace = Path(f"/proc/{holder}/ns/net").readlink()
    if namespace == Path("/proc/self/ns/net").readlink():
        raise RuntimeError(f"process {holder} holds no namespace of its own")
    inside = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        with contextlib.suppress(OSError):
            if pid != holder and Path(f"/proc/{pid}/ns/net").readlink() == namespace:
                inside.append(pid)
    return inside


def main(state: str, folder: str, node: str) -> None:
    holder, gateway = Path(folder, f"{node}.namespace").read_text().split()
    inside = ["nsenter", f"--target={holder}", "--net", "--mount"]
    subprocess.run([*inside, "ip", "link", "set", "power", {"off": "down", "on": "up"}[state]], check=True)
    if state == "off":
        while pids := running(int(holder)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return
    subprocess.run([*inside, "ip", "route", "replace", "default", "via", gateway], check=True)
    variables = {"SLURM_CONF": f"{folder}/slurm.conf", "CCBED_LAB_SLURM": f"{folder}:{node}"}
    subprocess.Popen(
        [*inside, "slurmd", "-D", "-N", node], env={**os.environ, **variables}, cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
