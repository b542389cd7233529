"""A rank says which of the user's files it imported."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path

import pytest

from orchestrator.rank.runtime import interpreter, recorder


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


def test_what_was_imported_before_the_program_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"ccbed_test_{number}" for number in range(100)]
    for name in ("ccbed_test_before", *names):
        monkeypatch.setitem(sys.modules, name, module(name, tmp_path / f"{name}.py"))
    assert interpreter.newest_module() == names[-1]
    assert list(recorder.modules_since("ccbed_test_before")) == ["__main__", *reversed(names)]
    assert list(recorder.modules_since(names[-2])) == ["__main__", names[-1]]
    assert recorder.modules_since("ccbed_test_gone") == dict(sys.modules)


def test_the_newest_module_of_the_agent_is_not_one_that_the_script_does_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ccbed_test_before", module("ccbed_test_before", None))
    for name in ("orchestrator.ccbed_test", "_ccbed_watch.ccbed_test"):
        monkeypatch.setitem(sys.modules, name, module(name, None))
    assert interpreter.newest_module() == "ccbed_test_before"


def test_nothing_is_written_where_nothing_was_imported(tmp_path: Path) -> None:
    recorder.write_imported(tmp_path, 0, tmp_path / "user", interpreter.newest_module())
    assert list(tmp_path.iterdir()) == []
    assert json.dumps(recorder.imported_files({}, tmp_path)) == "{}"
