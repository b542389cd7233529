"""What is installed outside of a checkout has everything that ccbed needs, the shipped inventories too."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from orchestrator import __version__

ROOT = Path(__file__).parents[2]
NEEDED = (
    "ccbed/__init__.py",
    "ccbed/py.typed",
    "ccbed/pytest_plugin.py",
    "orchestrator/_shipped/images/README.md",
    "orchestrator/_shipped/inventories/local.yml",
    "orchestrator/_shipped/playbooks/README.md",
    "orchestrator/_shipped/playbooks/hosts.yml",
    "orchestrator/_shipped/playbooks/files/apt.sh",
    "orchestrator/_shipped/playbooks/tasks/look.yml",
    "orchestrator/py.typed",
    "orchestrator/prepare/facts.py",
    "orchestrator/data/digits/train-images-idx3-ubyte",
    "orchestrator/reports/page/index.css",
    "orchestrator/reports/page/index.html.j2",
    "orchestrator/trials/dp-ring.yml",
)

FIND = """
from pathlib import Path
from orchestrator import plugins
from orchestrator.store import shipped
print(shipped.find(Path("inventories/local.yml")))
print(*sorted(plugins.discover().reports))
"""


#: A program of a user; mypy must know that its last line is wrong.
CLIENT = """
import ccbed


def drill(inventory: str) -> list[str]:
    with ccbed.Bed.up(inventory) as bed:
        result = ccbed.run("dp-ring", bed=bed, fail_node=[1, 2], params={"epochs": 1}).require_pass()
    return [finding.text for finding in ccbed.check(result.bundle).findings]


ccbed.run(3)
"""
#: A suite of a user: the modules that pytest rewrote are printed once the fixture has loaded what it needs.
SUITE = """
import sys

import ccbed.pytest_plugin
import pytest
from orchestrator import api
from orchestrator.cli import main


def test_modules(request):
    with pytest.raises(api.UsageError, match="no inventory is named"):
        request.getfixturevalue("ccbed_bed")
    ours = {name: module for name, module in sys.modules.items() if name.startswith(("orchestrator", "test_modules"))}
    rewritten = [name for name, module in ours.items() if type(module.__loader__).__name__ == "AssertionRewritingHook"]
    print("plugin:", ccbed.pytest_plugin.__file__)
    print("modules:", len(ours), "rewritten:", *rewritten)
"""
WRONG = 'client.py:11: error: Argument 1 to "run" has incompatible type "int"; expected "str | Path | Mapping[str, Any]"  [arg-type]'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return next(folder.glob("ccbed-*.whl"))


@pytest.mark.e2e
def test_the_wheel_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert set(NEEDED) <= names
    excess = ("tests/", "runs/", "orchestrator/packages/")
    assert not [name for name in names if name.startswith(excess) or "__pycache__" in name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


@pytest.mark.e2e
def test_an_installed_ccbed_finds_its_inventories_and_plugins(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", FIND]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=600, check=True)
    inventory, reports = done.stdout.splitlines()
    assert inventory == str(tmp_path / "site" / "orchestrator" / "_shipped" / "inventories" / "local.yml")
    assert reports.split() == ["collectives", "html", "junit", "metrics", "plots", "probes", "summary"]


def environment(folder: Path, *packages: str) -> Path:
    """An environment with ccbed alone; what it depends on is found where the tests have it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=600)
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    options = ("--no-deps", "--no-index", "--no-compile", "--no-build-isolation", "--ignore-installed")
    subprocess.run([*pip, "install", *options, *packages], check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("venv"), str(wheel))


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("editable"), "--editable", str(ROOT))


def run(*argv: str | Path, cwd: Path) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"XDG_STATE_HOME": str(cwd / "state"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.e2e
def test_an_installed_ccbed_brings_a_bed_up_and_runs_a_trial_without_the_source_tree(
    venv: Path, tmp_path: Path
) -> None:
    ccbed = venv / "bin" / "ccbed"
    assert run(venv / "bin" / "python", "-c", "import orchestrator; print(orchestrator.__file__)", cwd=tmp_path)[
        1
    ].startswith(str(venv))
    code, out = run(ccbed, "--version", cwd=tmp_path)
    assert (code, out.split()[:2]) == (0, ["ccbed", version("ccbed")])
    try:
        for words in (["up", "inventories/local.yml"], ["run", "dp-ring", "--fail-node", "2", "--epochs", "1"]):
            code, out = run(ccbed, *words, cwd=tmp_path)
            assert code == 0, out
        (page,) = tmp_path.glob("runs/*-dp-ring-????/report/index.html")
        assert "<svg" in page.read_text()
    finally:
        code, out = run(ccbed, "down", "--all", "--force", cwd=tmp_path)
    assert code == 0, out


@pytest.mark.e2e
def test_mypy_knows_the_types_of_an_installed_ccbed(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    mypy = (venv / "bin" / "python", "-m", "mypy", "--strict", "--no-error-summary", "client.py")
    assert run(*mypy, cwd=tmp_path) == (1, f"{WRONG}\n")
    (marker,) = venv.rglob("ccbed/py.typed")
    marker.unlink()
    code, out = run(*mypy, cwd=tmp_path)
    marker.touch()
    assert (code, "missing library stubs or py.typed marker" in out) == (1, True), "the control"


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["venv", "editable"])
def test_pytest_rewrites_no_assert_of_an_installed_ccbed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    (tmp_path / "test_modules.py").write_text(SUITE)
    (tmp_path / "ccbed").mkdir()  # as a checkout in the current directory: it hides no package
    suite = (folder / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", "-s")
    code, out = run(*suite, cwd=tmp_path)
    place = folder if kind == "venv" else ROOT / "orchestrator" / "packages"
    assert (code, re.findall("rewritten: (.*)", out)) == (0, ["test_modules"]), out
    assert Path(re.findall("plugin: (.*)", out)[0]).is_relative_to(place)


def release(tree: Path, *tag: str) -> tuple[int, str, dict[str, bytes]]:
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHON": sys.executable}
    done = subprocess.run(
        [tree / ".ci" / "release", *tag], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stderr, {file.name: file.read_bytes() for file in tree.glob("dist/*")}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tracked files, as another machine would have them."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.e2e
def test_a_release_has_the_version_of_its_tag_and_of_the_changelog_and_the_same_bytes_each_time(tree: Path) -> None:
    number = __version__
    assert release(tree, "v99.0")[:2] == (
        1, f"release: tag v99.0: orchestrator/__init__.py has version {number}; tag v{number}, or change the version\n"
    )  # fmt: skip
    changes = tree / "CHANGELOG.md"
    changes.write_text(re.sub(rf"(?m)^## {re.escape(number)}\b.*$", "## Earlier", changes.read_text()))
    code, errors, _ = release(tree, f"v{number}")
    assert (code, f"CHANGELOG.md: has no section of version {number}" in errors) == (1, True)
    changes.write_text(changes.read_text().replace("## Unreleased", f"## Unreleased\n\n## {number} - 2026-01-31"))
    code, errors, first = release(tree, f"v{number}")
    assert code == 0, errors
    wheels = [f"{name}-{number}-py3-none-any.whl" for name in ("ccbed", "ccbed_watch")]
    assert sorted(first) == sorted([*wheels, f"ccbed-{number}.tar.gz"])
    for name in wheels:
        with zipfile.ZipFile(io.BytesIO(first[name])) as wheel:
            assert {"LICENSE", "NOTICE"} <= {Path(file).name for file in wheel.namelist()}
    for file in tree.rglob("*.py"):
        os.utime(file)
    assert release(tree)[2] == first


def test_a_tag_builds_by_that_script_and_publishes_without_a_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert jobs[True] == {"push": {"tags": ["v*"]}}, "YAML reads on as a boolean"
    assert '.ci/release "$GITHUB_REF_NAME"' in [step.get("run") for step in jobs["jobs"]["build"]["steps"]]
    assert jobs["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(jobs)
