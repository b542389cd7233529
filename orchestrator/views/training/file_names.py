"""Names of the files of a checkpoint: which of them show that others are missing. The audit and the judge read them alike."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

RANK = re.compile(r"((?:rank|shard|rng_state|random_states|process)[-_=]?)(\d+)", re.IGNORECASE)
OF_COUNT = re.compile(r"(?!.*(?:epoch|step|iter|iteration)[-_= ]?\d+-of-)(.*?)(\d+)-of-(\d+)(.*)", re.IGNORECASE)


def missing(names: Collection[str]) -> str:
    """Say what a directory with these files lacks, by the numbers in their names and by shards without metadata; else nothing."""
    shards = [name for name in names if name.endswith(".distcp")]
    if shards and not any(name.endswith(".metadata") for name in names):
        return without_metadata(len(shards))
    return next(gaps(sorted(names)), "")


def without_metadata(shards: int) -> str:
    return f".metadata is missing beside {shards} shards: the save was cut before its end"


def family(name: str) -> str:
    return RANK.sub(r"\1*", name)


def families(names: Iterable[str]) -> dict[str, set[int]]:
    """Return the ranks of each family of files whose names differ by one number of a rank."""
    families: dict[str, set[int]] = {}
    for name in names:
        numbers = RANK.findall(name)
        if len(numbers) == 1 and not OF_COUNT.fullmatch(name):
            families.setdefault(family(name), set()).add(int(numbers[0][1]))
    return families


def gaps(names: Sequence[str]) -> Iterator[str]:
    """Say which of numbered files are missing: between two ranks, and of "3 of 5"."""
    for family, ranks in sorted(families(names).items()):
        if missing := list(itertools.islice((rank for rank in range(min(ranks), max(ranks)) if rank not in ranks), 8)):
            yield f"{family} is missing for rank {', '.join(map(str, missing))}"
    counted: dict[tuple[str, int, str], set[int]] = {}
    for match in filter(None, map(OF_COUNT.fullmatch, names)):
        counted.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    for (before, count, after), numbers in sorted(counted.items()):
        if len(numbers) < count:
            yield f"{count - len(numbers)} of the {count} files {before}*{after} are missing"
