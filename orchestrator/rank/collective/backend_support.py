"""What the backend can reduce and move, tried in a throw-away process: a dtype that it lacks would poison the real group."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ...model import algorithm as model
from ..exchange import operations
from .cases import DTYPES, OPERATORS, REDUCING, Case, Item

#: Seconds until a trial that does not answer counts as unsupported.
LIMIT_S = 10.0
#: The backend's own call: operation, dtype, operator.
Wanted = tuple[str, str, str]


class Unsupported(Exception):
    """The backend lacks what the run asks for."""

    kind = "unsupported"


def require(items: Iterable[Item], backend: str) -> None:
    """Raises Unsupported where ``backend`` does not do what the items ask of the library itself, and says what it does.

    To be called before the rank joins its group, while it has one thread. Our own algorithms need no more than bytes moved.
    """
    asked = dict.fromkeys(_wanted(item) for item in items if item.algorithm == model.LIBRARY)
    if backend != "gloo" or not asked:
        return
    lacking = [one for one, why in attempt(asked).items() if why]
    if lacking:
        raise Unsupported("; ".join(_refusal(one, backend) for one in lacking))


def attempt(wanted: Iterable[Wanted]) -> Mapping[Wanted, str]:
    """Why each does not work on a group of one process; empty: it does."""
    asked = tuple(wanted)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(asked, writing)
    os.close(writing)
    told = _heard(reading)
    os.close(reading)
    if len(told) < len(asked):
        os.kill(child, 9)
    os.waitpid(child, 0)
    return {one: told[index] if index < len(told) else "no answer" for index, one in enumerate(asked)}


def _wanted(item: Item) -> Wanted:
    return item.operation, item.dtype, item.operator if item.operation in REDUCING else "sum"


def _refusal(one: Wanted, backend: str) -> str:
    operation, dtype, operator = one
    combined = operation in REDUCING
    every = attempt((operation, known, how) for known in DTYPES for how in (OPERATORS if combined else ("sum",)))
    found: dict[str, list[str]] = {}
    for (_, known, how), why in every.items():
        if not why:
            found.setdefault(known, []).append(how)
    listed = ", ".join(f"{known} ({' '.join(how)})" if combined else known for known, how in found.items())
    what = f"{operator} of {dtype}" if combined else dtype
    return f"library: {backend} does no {operation} {what}; it does {listed or 'none'}"


def _child(asked: tuple[Wanted, ...], out: int) -> None:
    try:
        dist.init_process_group("gloo", store=_store(), rank=0, world_size=1)
        for one in asked:
            os.write(out, json.dumps(_try(one)).encode() + b"\n")
    finally:
        os._exit(0)


def _store() -> Any:
    """One that lives in this process alone."""
    return dist.HashStore()  # type: ignore[attr-defined]


def _try(one: Wanted) -> str:
    operation, dtype, operator = one
    if operation in ("send-recv", "barrier"):
        return ""  # bytes, or nothing
    item = Item(operation=operation, bytes=DTYPES[dtype] * 4, dtype=dtype, operator=operator, algorithm=model.LIBRARY)
    case = Case(number=0, item=item, groups=((0,),), first_step=1)
    alone = operations.Place(ranks=(0,), me=0)
    try:
        work = operations.Work(case, alone, None, operations.Memories(alone.ranks, torch.device("cpu")), None)
        work.fill()
        work.begin(0, lambda: None)()
    except Exception as error:  # noqa: BLE001 whatever the library says, it is a no
        return str(error).splitlines()[0] or type(error).__name__
    return ""


def _heard(reading: int) -> list[str]:
    text = b""
    while select.select([reading], [], [], LIMIT_S)[0]:
        data = os.read(reading, 65536)
        if not data:
            break
        text += data
    return [json.loads(line) for line in text.splitlines() if line]
