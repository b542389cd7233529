"""A file per rank through torch.distributed.checkpoint: each writes its own shards, and reads those that it needs.

The format is the library's own, readable by its tools; any number of ranks may load it. Every file is hashed while it is
written, and is read whole and compared before anything in it is used: ``.metadata`` is a pickle.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import api, default_planner, filesystem, state_dict_loader, state_dict_saver

from ...model import gang as gang_model
from ...model import manifest
from . import contents, single_file


def write(directory: Path, content: dict[str, Any], written: Callable[[], None]) -> contents.Shards | None:
    """Write what every rank holds of ``content`` into ``directory``; what rank 0 is to commit, None on the others.

    ``written`` is called when this rank's file is on the disk and nothing is committed yet. A collective of all ranks.
    Raises Unwritten on every rank if one of them could not write, CheckpointError for another error; the directory is
    removed then.
    """
    begin, writer = time.monotonic(), _Writer(directory, written)
    try:
        state_dict_saver.save(content, storage_writer=writer)
    except api.CheckpointException as error:
        if dist.get_rank() == 0:
            contents.remove(directory)
        written_badly = all(isinstance(cause, OSError) for cause, _ in error.failures.values())
        raise (single_file.Unwritten if written_badly else single_file.CheckpointError)(_reason(error)) from error
    told: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(writer.hashing.files, told if dist.get_rank() == 0 else None)
    if dist.get_rank() > 0:
        return None
    return contents.Shards(files={name: facts for one in told for name, facts in one.items()}, since=begin)


def read(resume: gang_model.Resume, content: dict[str, Any]) -> None:
    """Fill the tensors of ``content`` with what the checkpoint holds of them. A collective of all ranks.

    Raises CheckpointError where a file that this rank needs is not what was chosen.
    """
    reader = _Reader(Path(resume.path), _files(resume))
    try:
        state_dict_loader.load(content, storage_reader=reader, planner=_Planner())
    except api.CheckpointException as error:
        raise single_file.CheckpointError(f"{resume.path}: {_reason(error)}") from error


def world(resume: gang_model.Resume) -> int:
    """How many ranks wrote the checkpoint."""
    return int(_manifest(resume)["world"])


class _Hashing(io.BufferedWriter):
    """A file that is hashed as it is written, from its first byte to its last, and that is on the disk when it is closed.

    ``failed``: why it could not be written; torch.save tells of a position that it did not expect instead.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.sha256, self.size = hashlib.sha256(), 0
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            done = super().write(data)
        except OSError as error:
            self.failed = error
            raise
        self.sha256.update(data)
        self.size += done
        return done

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


class _HashingFiles(filesystem.FileSystem):
    """Writes files, and keeps what a manifest says of them."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with _Hashing(Path(path)) as stream:
            try:
                yield stream
            except RuntimeError as error:
                raise (stream.failed or error) from error
        self.files[Path(path).name] = {"sha256": stream.sha256.hexdigest(), "bytes": stream.size}

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Without its parents: they are missing only where the share is away."""
        Path(path).mkdir(exist_ok=True)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.files[Path(new_path).name] = self.files.pop(Path(path).name)


class _Writer(filesystem.FileSystemWriter):
    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        super().__init__(
            path, sync_files=False
        )  # the library syncs before it has flushed; a file is synced when it is closed
        self.fs = self.hashing = _HashingFiles()
        self._written = written

    def write_data(self, plan: Any, planner: Any) -> Any:
        done = super().write_data(plan, planner)
        self._written()
        return done


class _ProvedFiles(filesystem.FileSystem):
    """Opens the files of a manifest: read once, hashed, and used from those very bytes."""

    def __init__(self, files: manifest.Files) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        data, told = Path(path).read_bytes(), self._files[Path(path).name]
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != told["sha256"]:
            raise single_file.CheckpointError(
                f"{Path(path).name}: SHA-256 is {sha256[:12]}…, its manifest says {told['sha256'][:12]}…"
            )
        yield io.BytesIO(data)


class _Reader(filesystem.FileSystemReader):
    """``.metadata`` is read before the ranks meet in the load: one that cannot read it must not leave the others waiting."""

    def __init__(self, path: Path, files: manifest.Files) -> None:
        super().__init__(path)
        self.fs = _ProvedFiles(files)
        try:
            self._known = super().read_metadata()
        except OSError as error:
            raise single_file.CheckpointError(f"{path}: {error.strerror}") from error

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return self._known


class _Planner(default_planner.DefaultLoadPlanner):
    """Values that are no tensors are loaded as data, never as code."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def _files(resume: gang_model.Resume) -> manifest.Files:
    """The files that the choice stands for. Raises CheckpointError if the manifest is another than was chosen."""
    found = _manifest(resume)
    sha256 = manifest.joint(found["files"])
    if (sha256, found["step"]) != (resume.sha256, resume.step):
        told = f"its files are {sha256[:12]}… of step {found['step']}"
        raise single_file.CheckpointError(
            f"{resume.path}: {told}, chosen was {resume.sha256[:12]}… of step {resume.step}"
        )
    files: manifest.Files = found["files"]
    return files


def _manifest(resume: gang_model.Resume) -> Mapping[str, Any]:
    path = Path(f"{resume.path}.json")
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise single_file.CheckpointError(f"{path}: {error}") from error
    return found


def _reason(error: api.CheckpointException) -> str:
    """What the first rank that failed says."""
    rank, (cause, _) = min(error.failures.items(), key=lambda one: one[0])
    known = isinstance(cause, OSError | single_file.CheckpointError)
    said = getattr(cause, "strerror", None) or str(cause)
    return f"rank {rank}: {said if known else f'{type(cause).__name__}: {cause}'}"
