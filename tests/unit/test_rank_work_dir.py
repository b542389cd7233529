"""Where a rank finds the user's project, and how it gets there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.model.gang import WorkDir
from orchestrator.rank.runtime import isolation

COPY = WorkDir(root="/proj", path="/shared/r1/copy", source="/payload/user")
IN_PLACE = WorkDir(root="/proj", path="/proj")


@pytest.mark.parametrize(
    ("path", "moved"),
    [
        ("/proj/a/train.py", "/shared/r1/copy/a/train.py"),
        ("/proj", "/shared/r1/copy"),
        ("/project/x", "/project/x"),
        ("/else/x", "/else/x"),
    ],
)
def test_what_is_below_the_project_moves_with_it(path: str, moved: str) -> None:
    assert isolation.on_node(COPY, path) == moved
    assert isolation.on_node(IN_PLACE, path) == path


def test_ranks_of_a_copy_never_work_in_a_directory_that_other_runs_share(tmp_path: Path) -> None:
    place = WorkDir(root="/proj", path=str(tmp_path / "work"), source="/payload/user")
    assert isolation.current_directory(place, str(tmp_path)) == str(tmp_path / "work")
    assert isolation.current_directory(IN_PLACE, str(tmp_path)) == str(tmp_path)
    assert isolation.current_directory(None, str(tmp_path / "absent")) == ""


def test_a_project_is_copied_once_and_later_attempts_find_what_earlier_ones_wrote(tmp_path: Path) -> None:
    source = tmp_path / "payload/user"
    (source / "lib").mkdir(parents=True)
    (source / "lib/a.py").write_text("x")
    place = WorkDir(root="/proj", path=str(tmp_path / "shared/r1/work"), source=str(source))
    isolation.prepare_work_dir(place)
    (Path(place.path) / "snapshot.pt").write_text("1")
    isolation.prepare_work_dir(place)
    assert sorted(path.name for path in Path(place.path).iterdir()) == ["lib", "snapshot.pt"]
    assert not (source / "snapshot.pt").exists()
    assert [path.name for path in Path(place.path).parent.iterdir()] == ["work"]
