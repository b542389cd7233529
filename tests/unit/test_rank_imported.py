"""A rank says which of the user's files it imported."""

from __future__ import annotations

import hashlib
import json
import types
from pathlib import Path

import pytest

from orchestrator.rank.runtime import recorder


def module(name: str, file: Path | None) -> types.ModuleType:
    made = types.ModuleType(name)
    if file is not None:
        made.__file__ = str(file)
    return made


def test_files_of_the_user_are_named_with_their_digest_and_others_are_not(tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / "lib").mkdir(parents=True)
    (user / "lib" / "a.py").write_text("x = 1\n")
    (user / "unused.py").write_text("")
    modules = {
        "lib.a": module("lib.a", user / "lib/a.py"),
        "os": module("os", Path("/usr/os.py")),
        "sys": module("sys", None),
    }
    assert recorder.imported_files(modules, user) == {
        "lib/a.py": {"module": "lib.a", "size_bytes": 6, "sha256": hashlib.sha256(b"x = 1\n").hexdigest()}
    }


def test_a_file_that_is_too_large_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LARGEST", 3)
    (tmp_path / "a.py").write_text("x = 1\n")
    files = recorder.imported_files({"a": module("a", tmp_path / "a.py")}, tmp_path)
    assert files["a.py"]["sha256"] == "not hashed"


def test_nothing_is_written_where_nothing_was_imported(tmp_path: Path) -> None:
    recorder.write_imported(tmp_path, 0, tmp_path / "user")
    assert list(tmp_path.iterdir()) == []
    assert json.dumps(recorder.imported_files({}, tmp_path)) == "{}"
