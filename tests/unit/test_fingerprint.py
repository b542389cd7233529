"""Another data set is another fingerprint, and so another twin."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.store import fingerprint


def taken(data: Path | None) -> object:
    return fingerprint.take(code="c", threads=1, backend="gloo", data=str(data) if data else None)["data"]


def test_the_data_directory_is_part_of_what_a_result_depends_on(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(b"1")
    first = taken(tmp_path)
    assert first == taken(tmp_path)
    assert first != taken(None)
    file.write_bytes(b"12")
    assert first != taken(tmp_path)


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_other_data(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(b"1")
    before = taken(tmp_path)
    os.utime(file, ns=(1, 1))
    assert before != taken(tmp_path)
