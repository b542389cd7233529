"""Which GPUs of a host each of its nodes gets."""

from __future__ import annotations

from collections.abc import Sequence

from . import devices

Devices = tuple[str, ...]


def allot(asked: int | Sequence[str], members: int, standby: int) -> tuple[list[Devices], list[Devices]]:
    """The devices of the host's nodes and spares (``members`` in all), and those of its ``standby`` nodes.

    ``asked``: a number for each (indices are counted up), or names: ``all``, or a list that is shared out evenly. A standby
    takes the place of a node that is lost, so it gets the GPUs of one: the first that of the first node, and so on.
    Raises ValueError where what is asked for does not share out.
    """
    count = max(members, 1)
    if isinstance(asked, int):
        shares = [tuple(str(index * asked + offset) for offset in range(asked)) for index in range(count)]
    elif tuple(asked) == devices.ALL:
        shares = [_undivided(count)]
    else:
        shares = _cut(asked, count)
    return shares[:members], [shares[index % count] for index in range(standby)]


def _undivided(count: int) -> Devices:
    if count > 1:
        raise ValueError(f"all GPUs go to one node, and {count} are on this host; give a number for each, or a list")
    return devices.ALL


def _cut(names: Sequence[str], count: int) -> list[Devices]:
    each, rest = divmod(len(names), count)
    if rest:
        raise ValueError(f"{len(names)} GPUs cannot be shared out evenly to the {count} nodes of this host")
    return [tuple(names[index * each : (index + 1) * each]) for index in range(count)]
