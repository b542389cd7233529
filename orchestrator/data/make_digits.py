"""Makes the shipped digits: 8x8 images of 0..16 (optdigits) resampled to 28x28 bytes, as four IDX files.

    python orchestrator/data/make_digits.py [DIRECTORY]      writes them into DIRECTORY (default: beside the source file)

Uses integer arithmetic only, so that the files have the same bytes on every machine.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "digits" / "optdigits-tes.csv.gz"
SMALL, LARGE, DEPTH = 8, 28, 16
TRAIN = 1280

Image = Sequence[int]


def main(arguments: Sequence[str]) -> None:
    target = Path(arguments[0]) if arguments else SOURCE.parent
    for name, content in files(SOURCE.read_bytes()).items():
        (target / name).write_bytes(content)
        print(f"{target / name}: {len(content)} bytes")


def files(source: bytes) -> Mapping[str, bytes]:
    """File name -> content, from the gzipped CSV of 64 pixels and a class per line."""
    rows = [[int(cell) for cell in row] for row in csv.reader(io.StringIO(gzip.decompress(source).decode()))]
    images = [resample(row[:-1]) for row in rows]
    labels = [row[-1] for row in rows]
    parts = {"train": slice(0, TRAIN), "t10k": slice(TRAIN, None)}
    made = {}
    for name, part in parts.items():
        made[f"{name}-images-idx3-ubyte"] = _idx((len(images[part]), LARGE, LARGE), images[part])
        made[f"{name}-labels-idx1-ubyte"] = _idx((len(labels[part]),), [labels[part]])
    return made


def resample(image: Image) -> bytes:
    """Bilinear, pixel centres aligned, edges clamped; 0..16 becomes 0..255, halves rounded up."""
    axis = [_weights(index) for index in range(LARGE)]
    scale = _UNIT * _UNIT * DEPTH
    sums = (
        sum(wy * wx * image[SMALL * y + x] for y, wy in rows for x, wx in columns) for rows in axis for columns in axis
    )
    return bytes((2 * 255 * total + scale) // (2 * scale) for total in sums)


#: Centre i of the large grid lies at (i + 1/2) 8/28 - 1/2 = (4i - 5) / 14 of the small one.
_UNIT = 14


@functools.cache
def _weights(index: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two small pixels on both sides of a large pixel, with their weights in 14ths."""
    low, part = divmod(4 * index - 5, _UNIT)
    return (max(low, 0), _UNIT - part), (min(low + 1, SMALL - 1), part)


def _idx(shape: Sequence[int], rows: Iterable[Iterable[int]]) -> bytes:
    body = b"".join(bytes(row) for row in rows)
    header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
    return header + body


if __name__ == "__main__":
    main(sys.argv[1:])
