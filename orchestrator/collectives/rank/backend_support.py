"""Tries in a separate process which dtypes and operators the backend supports: an unsupported one would break the real group."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ...model import algorithm as model
from ...rank.exchange import operations
from ...rank.exchange.cases import DTYPES, OPERATORS, REDUCING, Case, Item

#: Seconds after which a try without a result counts as unsupported.
LIMIT_S = 10.0
#: A call of the backend: operation, dtype, operator.
Call = tuple[str, str, str]


class Unsupported(Exception):
    """The backend does not support what the run needs."""

    kind = "unsupported"


def require(items: Iterable[Item], backend: str) -> None:
    """Raises Unsupported, with the supported calls, if ``backend`` cannot do the items whose algorithm is ``library``.

    Called before the rank joins its group, while it has one thread. The algorithms of ccbed only move bytes.
    """
    called = (item for item in items if item.algorithm == model.LIBRARY)
    required = dict.fromkeys(
        (item.operation, item.dtype, item.operator if item.operation in REDUCING else "sum") for item in called
    )
    if backend != "gloo" or not required:
        return
    unsupported = [call for call, why in attempt(required).items() if why]
    if unsupported:
        raise Unsupported("; ".join(_explain(call, backend) for call in unsupported))


def attempt(calls: Iterable[Call]) -> Mapping[Call, str]:
    """Try each call on a group of one process; why it does not work, empty if it does."""
    tried = tuple(calls)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(tried, writing)
    os.close(writing)
    reasons = _read_reasons(reading)
    os.close(reading)
    if len(reasons) < len(tried):
        os.kill(child, 9)
    os.waitpid(child, 0)
    return {call: reasons[index] if index < len(reasons) else "no answer" for index, call in enumerate(tried)}


def _explain(call: Call, backend: str) -> str:
    operation, dtype, operator = call
    combined = operation in REDUCING
    every = attempt((operation, known, how) for known in DTYPES for how in (OPERATORS if combined else ("sum",)))
    supported: dict[str, list[str]] = {}
    for (_, known, how), why in every.items():
        if not why:
            supported.setdefault(known, []).append(how)
    listed = ", ".join(f"{known} ({' '.join(how)})" if combined else known for known, how in supported.items())
    what = f"{operator} of {dtype}" if combined else dtype
    return f"library: {backend} does not support {operation} {what}; it supports {listed or 'none'}"


def _child(calls: tuple[Call, ...], out: int) -> None:
    try:
        dist.init_process_group("gloo", store=_store(), rank=0, world_size=1)
        for call in calls:
            os.write(out, json.dumps(_try(call)).encode() + b"\n")
    finally:
        os._exit(0)


def _store() -> Any:
    """A store within this process."""
    return dist.HashStore()  # type: ignore[attr-defined]


def _try(call: Call) -> str:
    operation, dtype, operator = call
    if operation in ("send-recv", "barrier"):
        return ""  # bytes, or nothing
    item = Item(operation=operation, bytes=DTYPES[dtype] * 4, dtype=dtype, operator=operator, algorithm=model.LIBRARY)
    case = Case(number=0, item=item, groups=((0,),), first_step=1)
    alone = operations.Membership(ranks=(0,), me=0)
    try:
        work = operations.Work(case, alone, None, operations.Memories(alone.ranks, torch.device("cpu")), None)
        work.fill()
        work.begin(0, lambda: None)()
    except Exception as error:  # noqa: BLE001 any error of the library means unsupported
        return str(error).splitlines()[0] or type(error).__name__
    return ""


def _read_reasons(reading: int) -> list[str]:
    text = b""
    while select.select([reading], [], [], LIMIT_S)[0]:
        data = os.read(reading, 65536)
        if not data:
            break
        text += data
    return [json.loads(line) for line in text.splitlines() if line]
