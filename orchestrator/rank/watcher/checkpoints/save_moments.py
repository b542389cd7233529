"""The moments at which any rank saves: a shared file grows by a byte for each save, so that all ranks record the same moments.

A rank that reaches the next step after the rank that saves, as all do whose gradients are summed, finds the byte there.

The ranks of a restarted reference keep the random states of such a moment, and put them back where the job starts again: what
a restart changes beside them then shows. Loading draws random numbers, too. So they are put back after each load, as a
DataLoader begins, before it fetches, and last before the first forward pass: each time those of the same moment after the save.
Of a save in the middle of an accumulation they are not known: the moments are those of the whole step.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from .. import importlib_bootstrap, record, steps
from ..measures import batches
from . import generator_states, loads

VARIABLE = "CCBED_PUT_RANDOM_STATES_BACK"
WHOLE, PART = b".", b"+"


class SaveMoments:
    """A file in the run's directory for checkpoints, or none. Where it cannot be used, each rank knows its own saves only."""

    def __init__(self) -> None:
        folder, attempt = os.environ.get("CCBED_CHECKPOINTS"), os.environ.get("CCBED_EPOCH")
        self.path = f"{folder}/saves-e{attempt}" if folder and attempt else ""
        self._size = self._read()

    def announce(self, byte: bytes = WHOLE) -> None:
        """This rank saves: after a ``WHOLE`` step, or after ``PART`` of its backward passes."""
        if not self.path:
            return
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, byte)
            finally:
                os.close(fd)
        except OSError:
            self.path = ""

    def is_new(self) -> bool:
        """Return whether a rank has begun to save since the last call. It costs one ``stat``."""
        if not self.path:
            return False
        before, self._size = self._size, self._read()
        return self._size != before

    def _read(self) -> int:
        try:
            return os.stat(self.path).st_size if self.path else 0
        except OSError:
            return 0


class Restore:
    """The states of this rank by moment: ``step``, ``loader``, ``fetch``, ``forward``."""

    def __init__(self, path: Path) -> None:
        self._path, self._saves = path, SaveMoments()
        #: Those since the last step, and those to put back.
        self._kept: generator_states.States = {}
        self._saved: generator_states.States = json.loads(path.read_text()) if path.exists() else {}
        #: Backward passes before the coming step; -1 once its forward pass has begun.
        self._passes = steps.groups.passes

    def reach(self, moment: str) -> None:
        """A step has such moments until its first forward or backward pass."""
        if steps.groups.passes != self._passes:
            return
        if not self._saved:
            self._kept[moment] = generator_states.read()
        elif moment in self._saved:
            generator_states.write(self._saved[moment])
        self._passes = -1 if moment == "forward" else self._passes

    def end_step(self) -> None:
        """Begin the next step: what is kept or put back from now on belongs to it."""
        self._saved, self._kept = {}, {"step": generator_states.read()}
        self._passes = steps.groups.passes

    def keep(self, n: int, optimizer: Any) -> None:
        """Write the states of the last step to the file if a rank has saved since; remove the file if it saved in the middle of a step."""
        is_new = self._saves.is_new()
        if is_new and Path(self._saves.path).read_bytes().endswith(PART):
            self._path.unlink(missing_ok=True)
        elif is_new and self._kept:
            draft = self._path.with_suffix(".tmp")
            draft.write_text(json.dumps(self._kept, default=lambda state: state.tolist()))
            draft.replace(self._path)


@record.guarded("random states")
def watch_random_states() -> None:
    """Keep and put back, where this process belongs to a restarted reference and has a directory for it."""
    folder = os.environ.get("CCBED_CHECKPOINTS")
    if not folder or VARIABLE not in os.environ:
        return
    restore = Restore(Path(folder, f"random-r{os.environ.get('RANK', '0')}.json"))
    reach = record.guarded("random states")(restore.reach)
    loads.observe("after", lambda number: reach("step"))
    loader: Any = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
    loader.__init__ = importlib_bootstrap.observe(loader.__init__, lambda args, kwargs: reach("loader"))
    loader.__next__ = importlib_bootstrap.observe(loader.__next__, lambda args, kwargs: reach("fetch"))
    batches.inputs.observers.append(lambda: reach("forward"))
    steps.measure("random states", restore.end_step)
    steps.on_boundary(record.guarded("random states")(restore.keep))
