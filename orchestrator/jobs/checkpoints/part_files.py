"""The files of a checkpoint, by their content: damage, and what each one says about the step that it was saved at."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass, field
from . import pickled, saved_files
from .pickled import DamagedError

#: What a job calls the number of its steps, and of its epochs, at the top of a saved dict.
STEPS = ("global_step", "global_steps", "step", "steps", "iteration", "iter", "iter_num", "current_step", "train_step")
EPOCHS = ("epoch", "epochs", "epochs_run", "EPOCHS_RUN", "current_epoch")
#: What the first pickle of a file of torch.save has that is no archive.
_LEGACY = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt")
#: Suffixes that files of other programs have as well: with them the name must say that it is a checkpoint.
_COMMON = re.compile(
    r".*(model|optim|sched|state|weight|checkpoint|ckpt|adapter|snapshot|arg|scaler|custom).*\.(bin|pkl|tar)",
    re.IGNORECASE,
)
#: Names of what a save leaves behind that did not end.
UNFINISHED = re.compile(r"(^tmp[-_.].*|.*\.(tmp|part|partial|incomplete|temp)(\.\w+)?$|.*[-_.]tmp$)", re.IGNORECASE)


#: Names of the indexes that Hugging Face writes beside shards.
INDEX = re.compile(r".*\.(safetensors|bin)\.index(\.\w+)?\.json")
#: The largest JSON that is read.
_MOST_TEXT = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """``says``: name of a number -> its value; ``updates``: of each optimizer in it, how many updates it has made."""

    path: Path
    form: str
    size: int
    problem: str = ""
    unknown: str = ""
    says: Mapping[str, float] = field(default_factory=dict)
    updates: tuple[float, ...] = ()
    world: int | None = None
    digest: str = ""


def is_part(path: Path) -> bool:
    name = path.name
    is_known = (
        path.suffix in (*TORCH_SUFFIXES, ".safetensors")
        or INDEX.fullmatch(name) is not None
        or name == "trainer_state.json"
    )
    return (is_known or _COMMON.fullmatch(name) is not None) and not UNFINISHED.match(name)


def is_there(path: Path) -> bool:
    """Say whether a path that a file names exists: it may be one that no system has."""
    try:
        return path.exists()
    except OSError:
        return False


def read(path: Path, *, whole: bool) -> PartFile:
    """Read one file. ``whole``: every byte, with its checksum."""
    size = 0
    try:
        with pickled.reading():
            size = path.stat().st_size
            if not size:
                raise pickled.DamagedError("it is empty")
            if path.suffix == ".json":
                return _json(path, size)
            if path.suffix == ".safetensors":
                tensors = read_safetensors(path)
                digest = _digest(path) if whole else ""
                return PartFile(path=path, form=f"safetensors, {len(tensors)} tensors", size=size, digest=digest)
            return _torch(path, size, whole)
    except pickled.DamagedError as error:
        return PartFile(path=path, form="", size=size, problem=str(error))
    except pickled.UnreadError as error:
        return PartFile(path=path, form="", size=size, unknown=str(error))


def _json(path: Path, size: int) -> PartFile:
    if size > _MOST_TEXT:
        raise pickled.UnreadError(f"it has {size:,} bytes; {_MOST_TEXT:,} are read")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise pickled.DamagedError("it is cut, or no JSON") from None
    if not isinstance(document, dict):
        raise pickled.DamagedError("it is no JSON object")
    if path.name == "trainer_state.json":
        step = document.get("global_step")
        says = {"global_step": step} if isinstance(step, int) and abs(step) < 1 << 63 else {}
        return PartFile(path=path, form="state of a trainer", size=size, says=says)
    problem = "; ".join(_index_problems(path, document.get("weight_map")))
    return PartFile(path=path, form="index of tensors", size=size, problem=problem)


def _index_problems(path: Path, weights: Any) -> Iterator[str]:
    """Say which files, or tensors of safetensors files, an index names that are not there."""
    if not isinstance(weights, dict):
        yield "it has no weight_map"
        return
    by_file: dict[str, set[str]] = {}
    for name, file in weights.items():
        by_file.setdefault(str(file), set()).add(name)
    for file, names in sorted(by_file.items()):
        shard = path.parent / file
        if not is_there(shard) or not shard.is_file():
            yield f"{file}, which it names, is missing"
        elif shard.suffix == ".safetensors":
            try:
                missing = sorted(names - set(read_safetensors(shard)))
            except pickled.DamagedError:
                continue  # the shard has its own line
            if missing:
                yield f"{file} lacks {missing[0]}, which it names there"


def _torch(path: Path, size: int, whole: bool) -> PartFile:
    with path.open("rb") as stream:
        head = stream.read(16)
    if head[:2] == b"PK" or (head[:1] == b"\x80" and _LEGACY in head):
        file = saved_files.TorchFile(path, whole=whole)
        says, updates, world = _claims(file)
        form = f"torch.save, {len(file.storages)} tensors"
        return PartFile(path=path, form=form, size=size, says=says, updates=updates, world=world, digest=file.digest)
    if head[:1] == b"\x80":
        if size > pickled.MOST_BYTES:
            raise pickled.UnreadError(f"it is a pickle of {size:,} bytes; {pickled.MOST_BYTES:,} are read")
        with path.open("rb") as stream:
            pickled.read(stream)
        return PartFile(path=path, form="pickle", size=size)
    if path.suffix in (".pt", ".pth", ".ckpt") and not head[:4].strip(b"\0"):
        raise pickled.DamagedError("it begins with zeros: its data never reached the disk")
    return PartFile(path=path, form="", size=size, unknown="its form is not known")


def _claims(file: saved_files.TorchFile) -> tuple[dict[str, float], tuple[float, ...], int | None]:
    says, world = {}, None
    if isinstance(file.value, dict):
        numbers = {
            name: file.scalar(file.value[name]) for name in (*STEPS, *EPOCHS, "_step_count") if name in file.value
        }
        says = {name: number for name, number in numbers.items() if number is not None}
        size = file.value.get("dp_world_size")
        world = size if isinstance(size, int) and 0 < size < 1 << 20 else None
    made = (_updates(file, node) for node in pickled.walk(file.value) if isinstance(node, dict))
    return says, tuple(count for count in made if count is not None), world


def _updates(file: saved_files.TorchFile, node: dict[Any, Any]) -> float | None:
    """Return how many updates an optimizer has made whose state dict this is; None if it is none, or does not count."""
    states, groups = node.get("state"), node.get("param_groups")
    if not isinstance(states, dict) or not isinstance(groups, list):
        return None
    counts = [file.scalar(state["step"]) for state in states.values() if isinstance(state, dict) and "step" in state]
    return max((count for count in counts if count is not None), default=None)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


#: The format's own limit for a header.
_MOST_HEADER = 100_000_000


def read_safetensors(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the tensors of a file: name -> dtype, shape and place.

    Raises:
        DamagedError: it is cut, or its header and its size disagree.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if 8 + length > size or length > _MOST_HEADER:
            raise DamagedError("it is cut: its header is not there whole")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            places = sorted((entry["data_offsets"][0], entry["data_offsets"][1]) for entry in tensors.values())
            at = 0
            for start, end in places:
                if not at == start <= end:
                    raise DamagedError(f"its header leaves a gap, or lets tensors overlap, at byte {at:,} of the data")
                at = end
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            if isinstance(error, DamagedError):
                raise
            raise DamagedError("its header is no JSON object of tensors") from None
    if 8 + length + at > size:
        raise DamagedError(f"it is cut: its tensors end at byte {8 + length + at:,}, the file at {size:,}")
    if 8 + length + at < size:
        raise DamagedError(f"it has {size - 8 - length - at:,} bytes behind its last tensor")
    saved_files.check_last_pages(path, [(8 + length + start, 8 + length + end) for start, end in places])
    return tensors
