"""Plugins are found by their place, loaded when asked for, and a broken one is named."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.core.verdict import judge
from orchestrator.model.errors import UsageError
from orchestrator.model.trial import Trial
from orchestrator.store import rank_payload

ROOT = Path(__file__).parents[2]


def folder(root: Path, kind: str, name: str, text: str) -> Path:
    (root / kind).mkdir(parents=True, exist_ok=True)
    (root / kind / name).write_text(text)
    return root


def test_built_in_plugins_are_found_by_file_name() -> None:
    catalogue = plugins.discover()
    assert {"crash-node", "pause-node"} <= set(catalogue.faults)
    assert {"train-dp", "script"} <= set(catalogue.workloads)
    assert "dp-ring" in catalogue.trials
    assert catalogue.faults["crash-node"].summary.startswith("Kills every process of a node")


def test_checks_are_chosen_without_loading_those_that_do_not_judge() -> None:
    catalogue = plugins.discover()
    assert set(catalogue.always) == {name for name, plugin in catalogue.checkers.items() if plugin.module.ALWAYS}
    program = (
        "import sys; from orchestrator import plugins; from orchestrator.core.spec import planning; "
        "from orchestrator.core.verdict import judge; from orchestrator.model.trial import Trial; "
        "trial, known = Trial(name='t', workload='script'), plugins.discover(); "
        "planning.user_sources(trial, judge.specs(trial, known), known); "
        "print(*(name for name in sys.modules if name.startswith('orchestrator.checkers.')))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split() == []


def test_a_users_check_of_every_trial_is_chosen(tmp_path: Path) -> None:
    text = "Params = check = object\nALWAYS = bool(1)\n"
    catalogue = plugins.discover([folder(tmp_path, "checkers", "own_check.py", text)])
    assert "own-check" in [check.name for check in judge.specs(Trial(name="t", workload="script"), catalogue)]


def test_a_users_file_may_import_as_a_built_in_one_does(tmp_path: Path) -> None:
    text = '"""My fault."""\n\nfrom ..model.act import Act\n\nSAFETY = "process"\nKIND = Params = plan = Act\n'
    plugin = plugins.discover([folder(tmp_path, "faults", "my_fault.py", text)]).faults["my-fault"]
    assert (plugin.summary, plugin.module.SAFETY) == ("My fault", "process")


def test_a_broken_file_is_named_with_its_line_when_it_is_used_and_not_before(tmp_path: Path) -> None:
    catalogue = plugins.discover([folder(tmp_path, "faults", "broken.py", '"""X."""\nx = 1\ny = x / 0\n')])
    assert "broken" in catalogue.faults
    with pytest.raises(UsageError, match=r"broken\.py:3: cannot be loaded: ZeroDivisionError"):
        catalogue.faults["broken"]


def test_a_name_that_is_taken_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fault crash-node already exists"):
        plugins.discover([folder(tmp_path, "faults", "crash_node.py", "")])


def test_a_folder_without_plugins_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has none of faults"):
        plugins.discover([tmp_path])
    with pytest.raises(UsageError, match="no such directory"):
        plugins.discover([tmp_path / "nothing"])


def test_the_whole_catalogue_is_read_without_torch() -> None:
    program = (
        "import sys; from orchestrator import plugins; c = plugins.discover();"
        "[plugin.module for kind in plugins.KINDS for plugin in getattr(c, kind).values()];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_file_that_lacks_what_its_kind_must_offer_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    catalogue = plugins.discover([folder(tmp_path, "faults", "my_fault.py", '"""My fault."""\n\nSAFETY = "process"\n')])
    with pytest.raises(UsageError, match=r"must offer Params, SAFETY, plan; Params, plan is missing"):
        catalogue.faults["my-fault"]


EXAMPLES = ROOT / "tests" / "examples" / "plugins"
#: The entry points that CONTRIBUTING.md shows: group -> name -> module.
SHOWN = tomllib.loads(re.findall(r"```toml\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[0])[
    "project"
]["entry-points"]


def distribution(root: Path, name: str, entries: Mapping[str, Mapping[str, str]], files: Mapping[str, str]) -> Path:
    """An installed distribution ``NAME 1.2`` in ``root``."""
    about = root / f"{name}-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [
        line
        for group, items in entries.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in items.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))
    for path, text in files.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    return root


def acme(root: Path) -> Path:
    """The distribution of CONTRIBUTING.md, with the files that it shows. Its package cannot be imported: it is no part of a plugin."""
    modules = {module: group for group, items in SHOWN.items() for module in items.values()}
    files = {
        f"{module.replace('.', '/')}.py": (
            EXAMPLES / group.removeprefix("ccbed.") / f"{module.split('.')[-1]}.py"
        ).read_text()
        for module, group in modules.items()
    }
    return distribution(root, "acme", SHOWN, {"acme/__init__.py": "1 / 0\n", **files})


def test_the_entry_points_of_a_distribution_are_plugins_and_travel_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(acme(tmp_path))
    catalogue = plugins.discover()
    fault = catalogue.faults["kill-rank"]
    assert (fault.distribution, fault.source, fault.module.SAFETY) == (
        "acme 1.2",
        "plugins/faults/kill_rank.py",
        "process",
    )
    assert fault.summary == "Kills one rank and leaves its node alone"
    assert catalogue.faults["crash-node"].distribution == ""
    files = rank_payload.collect(Path(plugins.__file__).parent, catalogue)
    assert files["orchestrator/workloads/sum_steps.py"] == (tmp_path / "acme" / "sum_steps.py").read_bytes()


def test_the_list_names_the_distribution_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(acme(tmp_path / "site"))
    out = io.StringIO()
    own = terminal_session.Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out))
    assert main.run(["list", "faults"], own) == 0
    line = r"^  kill-rank +Kills one rank and leaves its node alone \[signal\] \(of acme 1\.2\)$"
    assert re.search(line, out.getvalue(), re.MULTILINE)


def test_a_file_of_the_user_replaces_the_plugin_of_a_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(acme(tmp_path / "site"))
    own = plugins.discover([EXAMPLES]).faults["kill-rank"]
    assert (own.path, own.distribution) == (str(EXAMPLES / "faults" / "kill_rank.py"), "")


@pytest.mark.parametrize(
    ("entry", "text", "problem"),
    [
        ({"crash-node": "bad.crash_node"}, "", r"fault crash-node already exists: .*orchestrator/faults/crash_node\.py"),
        ({"kill-rank": "bad.kill_rank"}, "", r"\(plugin of \w+ 1\.2\): fault kill-rank already exists: .*\(plugin of \w+ 1\.2\)"),
    ],
)  # fmt: skip
def test_a_name_that_is_taken_names_both_and_the_distribution(
    entry: Mapping[str, str], text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(acme(tmp_path / "acme"))
    files = {f"{module.replace('.', '/')}.py": text for module in entry.values()}
    monkeypatch.syspath_prepend(distribution(tmp_path / "bad", "bad", {"ccbed.faults": entry}, files))
    with pytest.raises(UsageError, match=problem) as raised:
        plugins.discover()
    assert raised.value.hint.startswith("uninstall one of them: pip uninstall ")


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("bad.odd", '"""X."""\nimport no_such_module\n', r"odd\.py:2 \(plugin of bad 1\.2\): cannot be loaded: ModuleNotFoundError"),
        ("bad.odd", '"""X."""\nSAFETY = "process"\n', r"\(plugin of bad 1\.2\): a file in faults/ must offer .* is missing"),
        ("bad.missing", "", r"\(plugin of bad 1\.2\): no Python file has the module bad\.missing"),
        ("nowhere.odd", "", r"\(plugin of bad 1\.2\): no Python file has the module nowhere\.odd"),
        ("bad.other", "", r"\(plugin of bad 1\.2\): entry point odd must name a module odd \(got bad\.other\)"),
        ("bad.odd:plan", "", r"entry point odd must name a module odd \(got bad\.odd:plan\)"),
    ],
)  # fmt: skip
def test_a_broken_plugin_of_a_distribution_is_one_error_when_it_is_used(
    module: str, text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"bad/odd.py": text, "bad/other.py": ""}
    monkeypatch.syspath_prepend(distribution(tmp_path, "bad", {"ccbed.faults": {"odd": module}}, files))
    catalogue = plugins.discover()
    assert {"odd", "crash-node"} <= set(catalogue.faults)
    with pytest.raises(UsageError, match=problem):
        catalogue.faults["odd"]
    assert catalogue.faults["crash-node"].distribution == "", "the others work"


def test_an_entry_point_that_is_named_as_its_module_is_told_the_dashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"ccbed.faults": {"kill_rank": "bad.kill_rank"}}
    monkeypatch.syspath_prepend(distribution(tmp_path, "bad", entries, {"bad/kill_rank.py": ""}))
    with pytest.raises(UsageError, match=r"entry point kill_rank must have dashes in its name: kill-rank$"):
        plugins.discover().faults["kill_rank"]


def test_without_such_a_distribution_the_slow_library_is_not_loaded() -> None:
    program = "import sys; from orchestrator import plugins; plugins.discover(); sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-S", "-c", program], check=False, cwd=ROOT).returncode == 0
