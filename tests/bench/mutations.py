"""The programs of ``jobs``, and how each is made to resume wrongly: by a changed line of its text, or by a changed checkpoint.

A line that ends in ``# restores PART`` gives that part of the state back; one that ends in ``# newest first`` sorts the
checkpoints; one that ends in ``# falls back`` goes on with the next older checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
RESTORES = re.compile(r"^(?P<indent> *)(?P<statement>.*?)  # restores (?P<part>[\w-]+)$", re.MULTILINE)
NEWEST = re.compile(r"^(?P<indent> *)(?P<name>\w+) = (?P<value>.*)  # newest first$", re.MULTILINE)
FALLS_BACK = re.compile(r"^(?P<indent> *)continue  # falls back$", re.MULTILINE)
#: Part that is not restored -> the rows of ``resume-complete`` of which one must fail.
PARTS = {
    "weights": ("weights",),
    "optimizer": ("optimizer",),
    "scheduler": ("learning rate", "scheduler"),
    "scaler": ("scaler",),
    "rng": ("RNG",),
    "data": ("data position",),
    "buffers": ("buffers",),
    "ema": ("copies of the model",),
}


@dataclass(frozen=True)
class Program:
    """A training script and what its text says of it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def ranks(self) -> int:
        return 4 if "RANKS = 4" in self.text else 2

    @property
    def is_collective(self) -> bool:
        """Whether all ranks load together."""
        return "torch.distributed.checkpoint" in self.text or "fsdp" in self.text

    @property
    def is_elastic(self) -> bool:
        """Whether another number of ranks can load its checkpoints."""
        return "torch.distributed.checkpoint" in self.text and "rng" not in self.text and self.ranks == 2

    @property
    def is_atomic(self) -> bool:
        """Whether a save that was interrupted leaves a checkpoint that can be loaded."""
        return any(word in self.text for word in ("os.replace", "os.rename", "dcp"))

    def wrongs(self) -> tuple[str, ...]:
        """What can be wrong with its resumption."""
        parts = {match["part"] for match in RESTORES.finditer(self.text)}
        has_several = bool(NEWEST.search(self.text)) or "latest" in self.text or "last.{age}" in self.text
        conditions = {
            "seed": "weights" in parts,
            "ranks": not self.is_collective,
            "newest": has_several and "last.{age}" not in self.text,
            "stale": has_several,
            "fallback": bool(FALLS_BACK.search(self.text)),
        }
        return (*sorted(parts), *(name for name, holds in conditions.items() if holds))

    def with_fault(self, wrong: str) -> str:
        """The text of the program that resumes wrongly; the text itself where the checkpoint is changed instead."""
        if wrong == "ranks":
            return RESTORES.sub(r'\g<indent>if __import__("os").environ["RANK"] == "0": \g<statement>', self.text)
        if wrong == "newest":
            return NEWEST.sub(r"\g<indent>\g<name> = (\g<value>)[1:]", self.text)
        if wrong == "fallback":
            return FALLS_BACK.sub(r"\g<indent>break", self.text)
        part = "weights" if wrong == "seed" else wrong
        return RESTORES.sub(lambda match: f"{match['indent']}pass" if match["part"] == part else match[0], self.text)


def programs() -> tuple[Program, ...]:
    return tuple(Program(path) for path in sorted(JOBS.glob("*/*.py")) if path.name != "__init__.py")


# --- checkpoints --------------------------------------------------------------------------------------------------------


def groups(directory: Path) -> list[dict[str, Path]]:
    """The files of each checkpoint by name without digits, oldest first; a number in the path tells them apart."""
    checkpoints: dict[str, dict[str, Path]] = {}
    for file in directory.glob("**/*"):
        relative = str(file.relative_to(directory))
        numbers = re.findall(r"\d+", re.sub(r"rank\d+", "", relative))
        if numbers and file.is_file() and ".tmp" not in relative:
            checkpoints.setdefault(numbers[0], {})[relative.replace(numbers[0], "#", 1)] = file
    return sorted(checkpoints.values(), key=lambda files: max(file.stat().st_mtime_ns for file in files.values()))


def tear_newest(directory: Path) -> bool:
    """Cut the largest file of the newest checkpoint in half. False without two checkpoints."""
    made = groups(directory)
    if len(made) < 2:
        return False
    largest = max(made[-1].values(), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    return True


def replace_newest(directory: Path) -> bool:
    """Put the files of the checkpoint before in the place of the newest."""
    made = groups(directory)
    if len(made) < 2:
        return False
    for name in made[-1].keys() & made[-2].keys():
        shutil.copyfile(made[-2][name], made[-1][name])
    return True


def turn_back_pointer(directory: Path) -> bool:
    """Let the file ``latest`` name the checkpoint before. False if there is no such file."""
    pointer = next(directory.glob("latest*"), None)
    made = groups(directory)
    if pointer is None or len(made) < 2:
        return False
    older = next(iter(made[-2].values())).parent.name
    pointer.write_text(older if not pointer.read_text().isdigit() else str(int(re.sub(r"\D", "", older))))
    return True
