"""Walls: what must not grow unnoticed, each with the limit in walls.toml and a control that shows that its measure counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.bench import bed as beds
from tests.bench.torchrun import PROGRAMS

from . import measures, start_cost, walls
from .test_layout import ROOT, sources

WALLS = walls.read(walls.FILE.read_text())
COMMANDS: Mapping[str, Sequence[str]] = {
    "ccbed --help": start_cost.python(beds.program(), "--help"),
    "import orchestrator.api": start_cost.python("-c", "import orchestrator.api"),
    "a no-op run": start_cost.python(beds.program(), "run", str(PROGRAMS / "noop.py")),
}
MODULES = {f"modules of {command}": argv for command, argv in COMMANDS.items()}
CPU = {f"CPU ms of {command}": argv for command, argv in COMMANDS.items()}
OF_FILES = [name for name in WALLS if name not in {*MODULES, *CPU}]

#: A repository in which every wall of files has something to count.
SMALL = {
    "orchestrator/a.py": "def f():\n    from . import b\n",
    "orchestrator/b.py": "from . import a\n",
    "orchestrator/c.py": "",
    "orchestrator/d.py": "from . import c\n",
    "tests/a.py": "",
}
#: What a change adds to its files, and the walls that must count one more.
CHANGES: Mapping[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "a line": ({"orchestrator/a.py": "\n"}, ["lines of the product", "lines of a file"]),
    "a line of a test": ({"tests/a.py": "\n"}, ["lines of the tests"]),
    "a file": ({"orchestrator/e.py": ""}, ["files of the product", "files of a folder"]),
    "a file of a test": ({"tests/b.py": ""}, ["files of the tests"]),
    "a mapping of anything": ({"orchestrator/b.py": "x: dict[str, Any]\n"}, ["dict[str, Any] in the product"]),
    "a circle of types": (
        {"orchestrator/c.py": "if TYPE_CHECKING:\n    from . import d\n"},
        ["import circles without imports in functions", "import circles"],
    ),
    "a circle of functions": ({"orchestrator/c.py": "def f():\n    import orchestrator.d\n"}, ["import circles"]),
    "a larger circle": (
        {"orchestrator/b.py": "from . import e\n", "orchestrator/e.py": "class E:\n    def f(self): from .a import f\n"},
        ["modules of the largest import circle"],
    ),
}  # fmt: skip


def of_files(texts: Mapping[str, str], readme: str = "") -> Mapping[str, walls.Measured]:
    own_wall = [name.removeprefix("files of ") for name in OF_FILES if name.startswith("files of ") and "/" in name]
    return measures.of_files(texts, readme, own_wall)


@pytest.fixture(scope="module")
def measured() -> Mapping[str, walls.Measured]:
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in sources()}
    return of_files(texts, (ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    small_bed = beds.Bed(tmp_path_factory.mktemp("bed"), nodes=1, spares=0)
    try:
        small_bed.call("up", str(small_bed.inventory), timeout_s=600)
        yield small_bed
    finally:
        small_bed.call("down", "local", expect=None, timeout_s=600)


@pytest.fixture(scope="module")
def cpu_s(bed: beds.Bed) -> Callable[[Sequence[str]], float]:
    return lambda argv: start_cost.cpu_s(argv, bed.environment(), bed.folder)


@pytest.fixture(scope="module")
def costs(cpu_s: Callable[[Sequence[str]], float]) -> start_cost.Costs:
    return start_cost.cpu(CPU, {name: WALLS[name].limit for name in CPU}, cpu_s)


def check(name: str, value: walls.Measured) -> None:
    print(walls.line(WALLS[name], value))
    message = walls.broken(WALLS[name], value)
    if message:
        pytest.fail(message, pytrace=False)


@pytest.mark.parametrize("name", OF_FILES)
def test_files_keep_the_wall(name: str, measured: Mapping[str, walls.Measured]) -> None:
    check(name, measured[name])


@pytest.mark.check
@pytest.mark.parametrize("name", MODULES)
def test_a_start_imports_no_more_modules(name: str, bed: beds.Bed) -> None:
    check(name, start_cost.modules(start_cost.imported(MODULES[name], bed.environment(), bed.folder)))


@pytest.mark.check
@pytest.mark.parametrize("name", CPU)
def test_a_start_takes_no_more_cpu(name: str, costs: start_cost.Costs) -> None:
    check(name, costs[name])


def test_everything_that_is_measured_has_a_wall(measured: Mapping[str, walls.Measured]) -> None:
    assert {*measured, *MODULES, *CPU} == set(WALLS)


def test_a_limit_is_raised_with_a_reason_only() -> None:
    assert list(walls.unreasonable(WALLS)) == []


def test_a_limit_without_its_reason_is_noticed() -> None:
    text = '[walls]\na = {limit = 3, lowest = 2}\nb = {limit = 3, lowest = 2, reason = "more"}\nc = {limit = 1, lowest = 2}\n'
    assert list(walls.unreasonable(walls.read(text))) == [
        "a: limit 3 was raised from 2: write the reason beside it",
        "c: limit 1 is the lowest so far: write lowest = 1 as well",
    ]


def test_a_broken_wall_says_value_limit_place_and_reason() -> None:
    wall = walls.Wall(name="lines", limit=3, lowest=2, reason="a new page")
    assert walls.broken(wall, walls.Measured(value=3)) == ""
    message = walls.broken(wall, walls.Measured(value=4, where="most: a 4"))
    assert message.splitlines() == ["lines: 4 of 3", "most: a 4", "reason of the limit: a new page", walls.NEXT]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_files_counts(change: str) -> None:
    added, names = CHANGES[change]
    before = of_files(SMALL)
    after = of_files({**SMALL, **{file: SMALL.get(file, "") + text for file, text in added.items()}})
    assert {name: after[name].value - before[name].value for name in names} == dict.fromkeys(names, 1)


def test_a_file_in_a_folder_with_a_limit_of_its_own_counts_there() -> None:
    before, after = of_files(SMALL), of_files({**SMALL, "orchestrator/checkers/new.py": ""})
    assert after["files of orchestrator/checkers"].value == before["files of orchestrator/checkers"].value + 1
    assert after["files of a folder"] == before["files of a folder"]


def test_a_word_counts() -> None:
    assert [of_files(SMALL, text)["words of README.md"].value for text in ("one two", "one two\nthree")] == [2, 3]


def test_every_wall_of_files_has_a_control() -> None:
    counted = {name for _, names in CHANGES.values() for name in names} | {"words of README.md"}
    assert {name for name in OF_FILES if not ("/" in name and name.startswith("files of "))} == counted


@pytest.mark.check
def test_a_module_more_counts(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text("")
    (tmp_path / "more.py").write_text("import few\ndef f():\n    import lazy\nf()\n")
    (tmp_path / "lazy.py").write_text("try:\n    import missing\nexcept ImportError:\n    pass\n")
    programs = ("pass", "import few", "import more")
    names = [start_cost.imported(start_cost.python("-c", program), os.environ, tmp_path) for program in programs]
    assert names == [set(), {"few"}, {"few", "more", "lazy", "missing"}]


def test_modules_of_another_standard_library_do_not_count() -> None:
    names = frozenset({"json", "json.decoder", "click", "orchestrator.cli"})
    assert [start_cost.modules(names, version).value for version in ("3.11.7", "3.12.1", "3.1.1")] == [4, 2, 2]


@pytest.mark.check
def test_more_work_costs_more(cpu_s: Callable[[Sequence[str]], float]) -> None:
    commands = {name: start_cost.python("-c", f"sum(range({n}))") for name, n in (("few", 10), ("many", 10_000_000))}
    costs = start_cost.cpu(commands, {"few": 10**6, "many": 10**6}, cpu_s)
    assert costs["many"].value > 2 * costs["few"].value


def test_a_cost_is_that_of_the_quickest_run_on_a_machine_of_the_same_speed() -> None:
    speed_of_reference = [0.5, start_cost.YARDSTICK_MS / 1000]
    assert start_cost.scaled([0.3, 0.2, 0.4], speed_of_reference).value == 200
    assert start_cost.scaled([0.6, 0.4, 0.8], [2 * second for second in speed_of_reference]).value == 200


def test_a_cost_above_its_limit_is_measured_until_it_is_within() -> None:
    seconds = iter([9.0] * 6 + [0.1])
    yardstick = start_cost.python("-c", start_cost.YARDSTICK)
    costs = start_cost.cpu({"a": ["a"]}, {"a": 100}, lambda argv: 0.2 if argv == yardstick else next(seconds))
    assert costs["a"].value == 100 and next(seconds, None) is None
