"""The shipped digits are what the script makes; a damaged data file is one clear error."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from orchestrator.data import make_digits
from orchestrator.rank.reference_models import datasets

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


def idx(shape: tuple[int, ...], body: bytes) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + body


def test_the_shipped_files_are_exactly_what_the_script_makes() -> None:
    made = make_digits.files(make_digits.SOURCE.read_bytes())
    assert len(made) == 4
    for name, content in made.items():
        assert (datasets.directory(None) / name).read_bytes() == content, name


def test_there_are_1280_and_517_of_them() -> None:
    assert datasets.count(datasets.directory(None)) == 1280
    assert datasets.read(datasets.directory(None), "t10k-images-idx3-ubyte", 3)[0] == (517, 28, 28)


def test_resampling_keeps_flat_areas_and_the_corners() -> None:
    assert set(make_digits.resample([16] * 64)) == {255}
    assert set(make_digits.resample([0] * 64)) == {0}
    corner = make_digits.resample([16] + [0] * 63)
    assert corner[0] == 255 and corner[-1] == 0


def test_gzipped_files_are_read_as_well(tmp_path: Path) -> None:
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(idx((3,), b"\x01\x02\x03")))
    assert datasets.read(tmp_path, LABELS, 1) == ((3,), b"\x01\x02\x03")
    assert datasets.count(tmp_path) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\x89PNG" + bytes(20), "not an IDX file"),
        (idx((2, 28, 28), b"")[:9], "ends within its header"),
        (idx((2, 28, 28), bytes(100)), "100 bytes of data, but its header says 2 x 28 x 28"),
        (idx((0, 28, 28), b""), "is empty"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / IMAGES).write_bytes(content)
    with pytest.raises(datasets.DataError, match=message) as error:
        datasets.read(tmp_path, IMAGES, 3)
    assert str(tmp_path / IMAGES) in str(error.value)


@pytest.mark.parametrize("cut", [5, 30])
def test_a_truncated_gzip_is_named_too(tmp_path: Path, cut: int) -> None:
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(idx((2, 28, 28), bytes(1568)))[:cut])
    with pytest.raises(datasets.DataError, match="cannot be read"):
        datasets.read(tmp_path, IMAGES, 3)


def test_a_missing_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(datasets.DataError, match=r"has neither train-images-idx3-ubyte nor .*\.gz"):
        datasets.read(tmp_path, IMAGES, 3)
