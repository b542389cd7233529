"""Files of safetensors: eight bytes of length, a JSON header, then the tensors without a gap.

Source of the format: the documentation of the package safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import torch_files
from .pickled import DamagedError

#: The format's own limit for a header.
_MOST_HEADER = 100_000_000


def read(path: Path) -> Mapping[str, Mapping[str, Any]]:
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
    torch_files.check_last_pages(path, [(8 + length + start, 8 + length + end) for start, end in places])
    return tensors
