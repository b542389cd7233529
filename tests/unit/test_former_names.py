"""A plugin of a user that imports modules by their former names works, with a notice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.rank.runtime import former_names

CHECKER = '''"""Uses former names."""

from ..model.plugin import NoParams as Params
from ..views import collectives
from ..views.collectives.table import table


def check(run, params):
    return collectives, table
'''


def test_former_names_lead_to_the_modules_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "checkers").mkdir()
    (tmp_path / "checkers" / "former.py").write_text(CHECKER)
    with pytest.warns(FutureWarning, match=r"orchestrator\.views\.collectives is now orchestrator\.collectives\.views"):
        plugin = plugins.discover([tmp_path]).checkers["former"]
    from orchestrator.collectives import views
    from orchestrator.collectives.views.case_table import table

    assert plugin.module.collectives is views
    assert plugin.module.table is table


def test_each_former_name_is_free_and_each_present_one_exists() -> None:
    package = Path(plugins.__file__).parent
    for old, new in former_names.FORMER.items():
        former, present = (package.joinpath(*name.split(".")) for name in (old, new))
        assert present.is_dir() or present.with_suffix(".py").is_file(), new
        assert not list(former.glob("*.py")) and not former.with_suffix(".py").exists(), old
