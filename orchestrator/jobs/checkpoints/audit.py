"""An audit of a directory of checkpoints without a crash: what is whole, what is damaged, what a restart would load."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...model.errors import UsageError
from ...model.frozen import dataclass, field
from ...views.training import file_names
from . import dcp_directories, part_files, pickled
from .part_files import PartFile

#: Directories below the one that is named, and entries in all of them.
MOST_DEEP, MOST_ENTRIES = 8, 200_000
#: Files that mark their directory as one checkpoint, and whose it is.
_MARKS: Sequence[tuple[str, str]] = (
    (r"trainer_state\.json", "Hugging Face Trainer"),
    (r"(\w+_)?(zero_pp_rank_\d+_)?mp_rank_\d+_(model|optim)_states\.pt", "DeepSpeed"),
    (r"random_states_\d+\.pkl", "Accelerate"),
    (r"\.metadata|.*\.distcp", "DCP"),
    (r"(pytorch_|adapter_)?model(-\d+-of-\d+)?\.(safetensors|bin)", "Hugging Face model"),
    (part_files.INDEX.pattern, "Hugging Face model"),
)
_POINTER = re.compile(r"(latest|last)(_checkpoint|_checkpointed_iteration)?(\.txt)?", re.IGNORECASE)
#: Files that change with each update: weights and states of optimizers.
_MOVES = re.compile(r"(?!base).*(model|weight|optim|adapter|\.distcp)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
#: Words that say which part of a checkpoint a file is: files with other words, as best and last, are checkpoints of their own.
_ROLES = re.compile(
    r"(?<![a-z])(pytorch|model|net|weights?|params?|optimi[sz]ers?|optim|opt|lr|sched|scheduler|states?|dict|scaler|ema|rng|random"
    r"|train|trainer|training|args|config|generator|discriminator|gen|disc|encoder|decoder|loader|dataloader|sampler|rank|shard|process)"
    r"(?![a-z])",
    re.IGNORECASE,
)
#: A directory of one save whose name begins with "tmp".
_OF_SAVE = re.compile(r"tmp[-_.](.*(step|checkpoint|epoch|iter|ckpt)[-_=.]?)?\d*([-_.].*)?", re.IGNORECASE)
#: A directory that is a checkpoint of its own, not a part of the one that it lies in.
_OWN_NAME = re.compile(r".*(step|checkpoint|epoch|iter|ckpt).*|\d+", re.IGNORECASE)


@dataclass(slots=True, kw_only=True, eq=False)
class Checkpoint:
    """One checkpoint: a directory, or files beside others. ``updates``: those that its only optimizer has made; ``misfit``: why
    the ranks that would load it cannot, although nothing is damaged.
    """

    name: str
    form: str
    place: Path
    files: Sequence[PartFile] = ()
    step: float | None = None
    size: int = 0
    updates: float | None = None
    world: int | None = None
    misfit: str = ""
    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "damaged" if self.problems else "misfit" if self.misfit else "unknown" if self.doubts else "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """``pointers``: problems of files and links that name the newest; ``unfinished``: what a save left that did not end;
    ``unread``: directories that could not be read, and why.
    """

    checkpoints: Sequence[Checkpoint]
    pointers: Sequence[str]
    unfinished: Sequence[str]
    unread: Sequence[str]

    @property
    def newest(self) -> Checkpoint:
        return self.checkpoints[-1]

    @property
    def newest_whole(self) -> Checkpoint | None:
        return next((checkpoint for checkpoint in reversed(self.checkpoints) if checkpoint.outcome == "whole"), None)


def audit(root: Path, *, world: int | None = None, whole: bool = True) -> Audit:
    """Read every checkpoint below ``root``, or the one that it is. ``world``: ranks that would load it.

    Raises:
        UsageError: there is no checkpoint, or more than is read.
    """
    if not root.exists():
        raise UsageError(f"{root}: no such file or directory", hint="name the directory that your job saves into")
    listing = _Listing(root)
    checkpoints = list(_checkpoints(root, listing, whole))
    left = _left(checkpoints, root)
    checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint not in left]
    listing.unfinished += (checkpoint.place for checkpoint in left)
    if not checkpoints:
        raise UsageError(
            (
                *listing.unread,
                *(f"{path}: what a save left that did not end, and nothing else" for path in listing.unfinished),
                f"{root}: no file of a known form of checkpoint",
            )[0],
            hint="known forms: torch.save, safetensors, torch.distributed.checkpoint, and those of Hugging Face, DeepSpeed and Lightning",
        )
    checkpoints.sort(
        key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0, _written(checkpoint.place))
    )
    _compare(checkpoints, world)
    for checkpoint in checkpoints:
        if None not in (world, checkpoint.world) and checkpoint.world != world:
            checkpoint.misfit = f"it is of {checkpoint.world} ranks, {world} would load it"
    pointers = [problem for path in listing.pointers for problem in _pointer_problems(path, checkpoints)]
    unfinished = [str(path.relative_to(root)) for path in listing.unfinished]
    return Audit(checkpoints=checkpoints, pointers=pointers, unfinished=unfinished, unread=listing.unread)


class _Listing:
    """The tree below a root, once, without following links out of it."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Path, list[Path]] = {}
        self.folders: dict[Path, list[Path]] = {}
        self.pointers: list[Path] = []
        self.unfinished: list[Path] = []
        self.unread: list[str] = []
        self.entries = 0
        if root.is_file():
            self.files[root.parent], self.folders[root.parent] = [root], []
        else:
            self._list(root, 0)

    def _list(self, folder: Path, depth: int) -> None:
        self.files[folder], self.folders[folder] = [], []
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return  # a job that runs has removed it
        except OSError as error:
            if not depth:
                raise UsageError(f"{folder}: {error.strerror}", hint="run it as the user of the job") from None
            self.unread.append(f"{folder}: {error.strerror}; run it as the user of the job")
            return
        has_checkpoints = any(_has_name_of_checkpoint(entry) for entry in entries)
        for entry in entries:
            self.entries += 1
            if self.entries > MOST_ENTRIES or depth > MOST_DEEP:
                raise UsageError(
                    f"{folder}: more than {MOST_ENTRIES:,} files or {MOST_DEEP} levels", hint="name a smaller directory"
                )
            path = Path(entry.path)
            if _is_pointer(path, entry):
                self.pointers.append(path)
            elif (entry.is_symlink() and not path.exists()) or _is_unfinished(entry, has_checkpoints):
                self.unfinished.append(path)
            elif entry.is_dir(follow_symlinks=False):
                self.folders[folder].append(path)
                self._list(path, depth + 1)
            elif entry.is_file():
                self.files[folder].append(path)


def _has_name_of_checkpoint(entry: os.DirEntry[str]) -> bool:
    """Has it the name of a checkpoint that is complete?"""
    is_named = _OWN_NAME.fullmatch(entry.name) if entry.is_dir() else part_files.is_part(Path(entry.path))
    return bool(is_named) and not part_files.UNFINISHED.match(entry.name)


def _is_unfinished(entry: os.DirEntry[str], has_checkpoints: bool) -> bool:
    """A directory such as ``tmp-checkpoint-30``, or ``tmp_a8f`` beside checkpoints, is what a save left; ``tmp_run`` may be a job's."""
    is_named = part_files.UNFINISHED.match(entry.name) is not None
    is_run = entry.name.lower().startswith("tmp") and entry.is_dir() and not _OF_SAVE.fullmatch(entry.name)
    return is_named and (has_checkpoints or not is_run)


def _left(checkpoints: Sequence[Checkpoint], root: Path) -> list[Checkpoint]:
    """The checkpoints that are not whole and lie alone in a directory such as ``tmp_a8f``, with none beside it: one save's."""
    inside: dict[Path, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        below = checkpoint.place.relative_to(root).parts if checkpoint.place.is_relative_to(root) else ()
        if below and part_files.UNFINISHED.match(below[0]) and (root / below[0]).is_dir():
            inside.setdefault(root / below[0], []).append(checkpoint)
    return [held[0] for held in inside.values() if len(held) == 1 and held[0].problems]


def _is_pointer(path: Path, entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink():
        return _POINTER.fullmatch(path.stem) is not None or path.is_dir()
    return _POINTER.fullmatch(entry.name) is not None and entry.is_file() and _stat(path).st_size < 4096


def _checkpoints(root: Path, listing: _Listing, whole: bool) -> Iterator[Checkpoint]:
    top = root.parent if root.is_file() else root
    for folder, files in listing.files.items():
        form = _form(files)
        if form == "DCP" and not _OWN_NAME.fullmatch(folder.name) and _is_inside(folder, listing):
            continue  # a part of the checkpoint above it
        if form:
            yield _directory(folder, form, top, listing, whole)
        else:
            yield from _loose(files, top, whole)


def _is_inside(folder: Path, listing: _Listing) -> bool:
    return any(_form(listing.files[parent]) for parent in folder.parents if parent in listing.files)


def _form(files: Iterable[Path]) -> str:
    names = [path.name for path in files]
    return next((form for mark, form in _MARKS if any(re.fullmatch(mark, name) for name in names)), "")


def _directory(folder: Path, form: str, top: Path, listing: _Listing, whole: bool) -> Checkpoint:
    parts = [part_files.read(path, whole=whole) for path in listing.files[folder] if part_files.is_part(path)]
    name = str(folder.relative_to(top)) if folder != top else folder.name
    made = _made(name, form, folder, parts)
    inner = [
        child
        for child in listing.folders[folder]
        if _form(listing.files[child]) == "DCP" and not _OWN_NAME.fullmatch(child.name)
    ]
    for place in (folder, *inner):
        if place != folder or any(_form([path]) == "DCP" for path in listing.files[place]):
            _read_dcp(made, place, listing.files[place], whole)
    if form == "DeepSpeed":
        _read_deepspeed(made)
    named = re.fullmatch(r"(?:checkpoint-|global_step)(\d+)", folder.name)
    if named and form in ("Hugging Face Trainer", "DeepSpeed") and made.step not in (None, int(named[1])):
        made.problems.append(
            f"parts of different steps: its directory is of step {named[1]}, its files say {made.step:g}"
        )
    if form == "Accelerate" and (digits := _NUMBER.findall(folder.name)):
        made.step = int(digits[-1])  # its files count the steps of an epoch
    if (
        form == "Hugging Face Trainer"
        and (named or any(part.path.name == "optimizer.pt" for part in parts))
        and not inner
        and not any(
            re.match(r".*(model|states)", path.name)
            for place, files in listing.files.items()
            if place == folder or folder in place.parents
            for path in files
        )
    ):
        made.problems.append("it has no file of weights")
    return made


def _loose(files: Iterable[Path], top: Path, whole: bool) -> Iterator[Checkpoint]:
    """Files without a framework's mark: those whose names differ by ranks and roles only are one checkpoint."""
    parts = [path for path in files if part_files.is_part(path)]
    for (number, *_), group in itertools.groupby(sorted(parts, key=_moment), key=_moment):
        paths = list(group)
        read = [part_files.read(path, whole=whole) for path in paths]
        name = str(paths[0].relative_to(top)) if len(paths) == 1 else f"{_common(paths, top)} ({len(paths)} files)"
        made = _made(name, "", paths[0], read)
        if made.step is None and number >= 0:
            made.step = number
        elif made.step is None and (digits := _NUMBER.findall(paths[0].parent.name)) and paths[0].parent != top:
            made.step = int(digits[-1])
        yield made


def _moment(path: Path) -> tuple[int, list[str], str]:
    """Return what of a file's name tells checkpoints apart, not ranks and roles: the step, or -1; all numbers; other words."""
    name = file_names.RANK.sub(r"\1", path.stem)
    if match := file_names.OF_COUNT.fullmatch(name):
        name = match[1] + match[4]
    numbers = _NUMBER.findall(re.sub(r"\d+\.\d+|[-_]v\d+$", "", name))  # not of a loss, or of a version
    words = re.sub(r"[\W\d_]+", "", _ROLES.sub("", name)).lower()
    return int(numbers[-1]) if numbers else -1, _NUMBER.findall(name), words


def _common(paths: Sequence[Path], top: Path) -> str:
    """Return what names several files: the beginning that they share, else their directory."""
    shared = "".join(
        letters[0]
        for letters in itertools.takewhile(
            lambda letters: len(set(letters)) == 1, zip(*(path.name for path in paths), strict=False)
        )
    )
    folder = paths[0].parent
    if shared:
        return str((folder / f"{shared}*").relative_to(top))
    return str(folder.relative_to(top)) if folder != top else folder.name


def _made(name: str, form: str, place: Path, parts: Sequence[PartFile]) -> Checkpoint:
    made = Checkpoint(name=name, form=form, place=place, files=parts, size=sum(part.size for part in parts))
    base = place if place.is_dir() else place.parent
    made.problems += [f"{part.path.relative_to(base)}: {part.problem}" for part in parts if part.problem]
    made.doubts += [f"{part.path.relative_to(base)}: {part.unknown}" for part in parts if part.unknown]
    for names in (part_files.STEPS, part_files.EPOCHS):
        for word in names:
            # The random states of Accelerate count the steps of an epoch.
            counting = [part for part in parts if word in part.says and not part.path.name.startswith("random_states")]
            stated = {part.path.name: part.says[word] for part in counting}
            if len(set(stated.values())) > 1:
                made.problems.append("parts of different steps: " + _listed(stated, word))
            if stated and names is part_files.STEPS and made.step is None:
                made.step = max(stated.values())
    counted = {part.path.name: part.updates[0] for part in parts if len(part.updates) == 1}
    if counted and sum(len(part.updates) for part in parts) == len(counted):
        if len(set(counted.values())) == 1:
            made.updates = next(iter(counted.values()))
        elif len({file_names.family(name) for name in counted}) == 1:
            made.problems.append("parts of different steps: " + _listed(counted, "updates"))
    made.problems += file_names.gaps([part.path.name for part in parts])
    families = file_names.families(part.path.name for part in parts)
    made.world = max((max(ranks) + 1 for ranks in families.values()), default=None)
    for family, ranks in sorted(families.items()):
        if min(ranks):
            made.doubts.append(f"{family} begins at rank {min(ranks)}: the others lie on other hosts, or are missing")
    return made


def _listed(stated: Mapping[str, float], word: str) -> str:
    return ", ".join(f"{name} says {word} {value:g}" for name, value in sorted(stated.items())[:4])


def _read_dcp(made: Checkpoint, place: Path, files: Sequence[Path], whole: bool) -> None:
    shards = [path for path in files if path.suffix == ".distcp"]
    made.files = (*made.files, *(PartFile(path=path, form="DCP", size=_stat(path).st_size) for path in shards))
    made.size = sum(part.size for part in made.files)
    prefix = "" if place == made.place else f"{place.name}/"
    if not (place / dcp_directories.METADATA).is_file() and (own := sorted(place.glob("*.metadata"))):
        made.doubts.append(f"{prefix}{own[0].name} is the metadata of one rank, saved with use_collectives=False")
        return
    if not (place / dcp_directories.METADATA).is_file():
        made.problems.append(f"{prefix}{file_names.without_metadata(len(shards))}")
        return
    try:
        pieces = dcp_directories.pieces(place)
        with pickled.reading():
            made.problems += [f"{prefix}{problem}" for problem in dcp_directories.problems(place, pieces, whole=whole)]
            steps = {} if made.problems else dcp_directories.steps(place, pieces)
    except pickled.DamagedError as error:
        made.problems.append(f"{prefix}{dcp_directories.METADATA}: {error}")
        return
    except pickled.UnreadError as error:
        made.doubts.append(f"{prefix.rstrip('/') or 'the directory'}: {error}")
        return
    newest = {file: max(numbers) for file, numbers in steps.items()}
    if len(set(newest.values())) > 1:
        made.problems.append("parts of different steps: " + _listed(newest, "updates"))
    elif newest:
        made.updates = next(iter(newest.values()))
    if made.step is None and (digits := _NUMBER.findall(made.place.name)):
        made.step = int(digits[-1])


def _read_deepspeed(made: Checkpoint) -> None:
    """Every rank of the data-parallel world that the model's file states has a file of its optimizer's partition."""
    world = next((part.world for part in made.files if part.world), None)
    names = [part.path.name for part in made.files]
    partitions = {
        int(match[1]) for name in names if (match := re.search(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states", name))
    }
    if not any("model_states" in name for name in names):
        made.problems.append("no file of model states: the save was cut before its end")
    if partitions and world and (missing := [rank for rank in range(world) if rank not in partitions]):
        made.problems.append(
            f"the optimizer's partition of rank {', '.join(map(str, missing[:8]))} of {world} is missing"
        )
    made.world = world if partitions else None


def _compare(checkpoints: Sequence[Checkpoint], world: int | None) -> None:
    """Compare directories whose names differ by numbers: what all others have, and what none shares with another."""
    groups: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        if checkpoint.place.is_dir():
            groups.setdefault(_NUMBER.sub("*", str(checkpoint.place)), []).append(checkpoint)
    for group in groups.values():
        names = [{file_names.family(part.path.name) for part in checkpoint.files} for checkpoint in group]
        for place, checkpoint in enumerate(group):
            others = [held for other, held in enumerate(names) if other != place]
            if others and (missing := sorted(set.intersection(*others) - names[place])):
                checkpoint.doubts.append(f"{missing[0]} is missing, which all others beside it have")
        for earlier, later in itertools.pairwise(group):
            if earlier.step != later.step:
                _compare_pair(earlier, later)
        if len(group) > 1 and (group[-1].world or 0) < (group[-2].world or 0) and group[-1].world != world:
            group[-1].doubts.append(
                f"it has files of {group[-1].world} ranks, {group[-2].name} of {group[-2].world}: if that is right, give --world"
            )


def _compare_pair(earlier: Checkpoint, later: Checkpoint) -> None:
    if later.updates is not None and later.updates == earlier.updates:
        later.doubts.append(
            f"its optimizer has made {later.updates:g} updates, as that of {earlier.name}: it is of an earlier step, or was not used"
        )
    before = {part.path.name: part for part in earlier.files if _MOVES.match(part.path.name)}
    for part in later.files:
        if (
            "_step_count" in part.says
            and later.form == "Hugging Face Trainer"
            and _steps_of(earlier, part) == part.says["_step_count"]
        ):
            later.doubts.append(f"{part.path.name} has made as many steps as that of {earlier.name}")
        twin = before.get(part.path.name)
        if twin and twin.size == part.size and part.digest and part.digest == twin.digest:
            later.doubts.append(f"{part.path.name} is byte for byte that of {earlier.name}")


def _steps_of(checkpoint: Checkpoint, part: PartFile) -> float | None:
    return next((held.says.get("_step_count") for held in checkpoint.files if held.path.name == part.path.name), None)


def _pointer_problems(path: Path, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Say what is wrong with the checkpoint that a link, or a file such as ``latest``, names."""
    if path.is_symlink():
        name = str(path.readlink())
        target = path.parent / name
    else:
        try:
            name = path.read_text().strip()[:1024]
        except (OSError, UnicodeDecodeError):
            return
        if not name or len(name.split()) != 1:
            yield (
                f"{path.name} is empty: a restart that reads it finds no checkpoint"
                if not name
                else f"{path.name} names no checkpoint"
            )
            return
        # Some jobs write a path of the host, or working directory, of the job; others the step alone.
        names = [name, Path(name).name, f"iter_{name:0>7}"]
        of_step = (checkpoint.place for checkpoint in checkpoints if name.isdecimal() and checkpoint.step == int(name))
        places = (*(path.parent / candidate for candidate in names), *of_step)
        target = next(filter(part_files.is_there, places), path.parent / name)
    if not part_files.is_there(target):
        yield f"{path.name} names {name}, which is not there"
        return
    for checkpoint in checkpoints:
        if checkpoint.outcome == "damaged" and os.path.realpath(checkpoint.place) == os.path.realpath(target):
            yield f"{path.name} names {name}, which is damaged"


def _written(path: Path) -> float:
    return _stat(path).st_mtime


def _stat(path: Path) -> os.stat_result:
    """A job that runs may remove a file while it is read: then it is empty, and of the beginning of time."""
    try:
        return path.stat()
    except OSError:
        return os.stat_result((0,) * 10)
