"""The kind of file system that a path lies on, by the mounts of this process."""

from __future__ import annotations

import os
import re

_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def kind(path: str, mounts: str = _MOUNTS) -> str:
    """The type, such as ``ext4``, ``tmpfs`` or ``nfs4``; empty if it is not known."""
    real = os.path.realpath(path)
    best = ("", "")
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                fields = before.split()
                point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]) if len(fields) > 4 else ""
                is_above = point == "/" or real == point or real.startswith(point + "/")
                if point and is_above and len(point) >= len(best[0]):  # of mounts at one point the last one is on top
                    best = (point, after.split()[0] if after.split() else "")
    except OSError:
        return ""
    return best[1]
