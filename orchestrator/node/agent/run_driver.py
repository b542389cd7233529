"""Whether an orchestrator may drive a run on the bed: only then its nodes must send a heartbeat several times a second."""

from __future__ import annotations

import time
from pathlib import Path

from ..files import label, plain_files
from ..oslayer import processes

#: A run is taken to be driven for so long before that is checked again, in seconds.
CHECK_S = 5.0


class RunDriver:
    """Reads the lock file of the bed, without its lock: a probe of many agents could keep an orchestrator from taking it."""

    def __init__(self, workdir: Path) -> None:
        self.path = workdir / label.RUN_LOCK
        self._version: tuple[int, int] | None = None
        self._until = 0.0

    def may_drive(self) -> bool:
        """False if the process that wrote the file last has ended, or no process ever wrote it; True if that is not known."""
        now = time.monotonic()
        try:
            status = self.path.stat()
        except OSError:
            return True
        version = (status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._version, self._until = version, now + CHECK_S
        if self._until and now >= self._until:
            self._until = now + CHECK_S if self._is_alive() else 0.0
        return self._until > 0.0

    def _is_alive(self) -> bool:
        """Only an orchestrator of this host writes its pid alone; the helper of a distant one may be in another pid namespace.

        A file with content that names no pid is not known; an empty one was never written.
        """
        if self._version and not self._version[1]:
            return False
        holder = plain_files.read_json(self.path)
        pid = holder.get("pid")
        return "helper" in holder or not isinstance(pid, int) or processes.find(pid) is not None
