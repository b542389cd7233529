"""Checkpoints with a file per rank, through torch.distributed.checkpoint: each rank writes its shards and reads those it needs.

The format is the library's, so that its tools can read it and any number of ranks can load it. Every file is hashed while it
is written, and its hash is compared before its content is used: ``.metadata`` is a pickle.
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
    """Write every rank's part of ``content`` into ``directory``; return the content for rank 0 to commit, None on the others.

    ``written`` is called when this rank's file is on the disk and nothing is committed yet. A collective of all ranks.
    Raises Unwritten on every rank if a rank could not write, CheckpointError for other errors; the directory is removed.
    """
    begin, writer = time.monotonic(), _Writer(directory, written)
    try:
        state_dict_saver.save(content, storage_writer=writer)
    except api.CheckpointException as error:
        if dist.get_rank() == 0:
            contents.remove(directory)
        write_failed = all(isinstance(cause, OSError) for cause, _ in error.failures.values())
        raise (single_file.Unwritten if write_failed else single_file.CheckpointError)(_reason(error)) from error
    files: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(writer.hashing.files, files if dist.get_rank() == 0 else None)
    if dist.get_rank() > 0:
        return None
    return contents.Shards(files={name: facts for part in files for name, facts in part.items()}, since=begin)


def read(resume: gang_model.Resume, content: dict[str, Any]) -> None:
    """Fill the tensors of ``content`` from the checkpoint. A collective of all ranks.

    Raises CheckpointError if a file that this rank needs is not the one that was chosen.
    """
    reader = _Reader(Path(resume.path), _files(resume))
    try:
        state_dict_loader.load(content, storage_reader=reader, planner=_Planner())
    except api.CheckpointException as error:
        raise single_file.CheckpointError(f"{resume.path}: {_reason(error)}") from error


def world(resume: gang_model.Resume) -> int:
    """Return how many ranks wrote the checkpoint."""
    return int(_manifest(resume)["world"])


class _Hashing(io.BufferedWriter):
    """A file that is hashed while it is written and synced when it is closed.

    ``failed``: the error of the write; torch.save reports an unexpected position instead.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.sha256, self.size = hashlib.sha256(), 0
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            size = super().write(data)
        except OSError as error:
            self.failed = error
            raise
        self.sha256.update(data)
        self.size += size
        return size

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


class _HashingFiles(filesystem.FileSystem):
    """Writes files and collects their entries for the manifest."""

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
        """Create the directory without its parents: they are missing only if the share is not mounted."""
        Path(path).mkdir(exist_ok=True)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.files[Path(new_path).name] = self.files.pop(Path(path).name)


class _Writer(filesystem.FileSystemWriter):
    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        super().__init__(
            path, sync_files=False
        )  # the library syncs before it flushes; here a file is synced when it is closed
        self.fs = self.hashing = _HashingFiles()
        self._written = written

    def write_data(self, plan: Any, planner: Any) -> Any:
        result = super().write_data(plan, planner)
        self._written()
        return result


class _VerifiedFiles(filesystem.FileSystem):
    """Opens the files of a manifest: each is read once, verified, and used from the same bytes."""

    def __init__(self, files: manifest.Files) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        data, facts = Path(path).read_bytes(), self._files[Path(path).name]
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != facts["sha256"]:
            raise single_file.CheckpointError(
                f"{Path(path).name}: SHA-256 is {sha256[:12]}…, its manifest says {facts['sha256'][:12]}…"
            )
        yield io.BytesIO(data)


class _Reader(filesystem.FileSystemReader):
    """Reads ``.metadata`` before the collective load, so that a rank that cannot read it does not block the others."""

    def __init__(self, path: Path, files: manifest.Files) -> None:
        super().__init__(path)
        self.fs = _VerifiedFiles(files)
        try:
            self._known = super().read_metadata()
        except OSError as error:
            raise single_file.CheckpointError(f"{path}: {error.strerror}") from error

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return self._known


class _Planner(default_planner.DefaultLoadPlanner):
    """Loads values that are not tensors as data, never as code."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def _files(resume: gang_model.Resume) -> manifest.Files:
    """The files of the chosen checkpoint. Raises CheckpointError if the manifest is not the one that was chosen."""
    content = _manifest(resume)
    sha256 = manifest.joint(content["files"])
    if (sha256, content["step"]) != (resume.sha256, resume.step):
        files_shown = f"its files are {sha256[:12]}… of step {content['step']}"
        raise single_file.CheckpointError(
            f"{resume.path}: {files_shown}, chosen was {resume.sha256[:12]}… of step {resume.step}"
        )
    files: manifest.Files = content["files"]
    return files


def _manifest(resume: gang_model.Resume) -> Mapping[str, Any]:
    path = Path(f"{resume.path}.json")
    try:
        content: Mapping[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise single_file.CheckpointError(f"{path}: {error}") from error
    return content


def _reason(error: api.CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    known = isinstance(cause, OSError | single_file.CheckpointError)
    text = getattr(cause, "strerror", None) or str(cause)
    return f"rank {rank}: {text if known else f'{type(cause).__name__}: {cause}'}"
