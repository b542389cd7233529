"""Builds of two states of the repository that differ in nothing but their files: a commit, and the checkout as it is now."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from .turns import FailedError

ROOT = Path(__file__).parents[3]
#: Extras that a run needs; `make check` needs DEV as well.
RUN, DEV = ("local", "plots"), ("dev",)
SCRIPT = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def commit_of(ref: str) -> str:
    """Raises FailedError for what names no commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise FailedError(f"REF={ref}: no commit has this name here; next: git log, then make against REF=COMMIT")
    return done.stdout.strip()


def subject_of(commit: str) -> str:
    return _git(ROOT, "log", "-1", "--format=%h %s", commit).strip()


def export_commit(commit: str, tree: Path) -> None:
    """The files of a commit, as a checkout of their own."""
    tree.mkdir()
    archive = tree.with_suffix(".tar")
    _git(ROOT, "archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as files:
        files.extractall(tree, filter="data")
    archive.unlink()
    _track(tree)


def export_checkout(tree: Path) -> None:
    """The checkout with what is changed and what is new in it, but without what git ignores."""
    listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    _track(tree)


def has_target(tree: Path, target: str) -> bool:
    return re.search(rf"^{target}:", (tree / "Makefile").read_text(), re.MULTILINE) is not None


def install(tree: Path) -> None:
    """An environment in ``.venv``. It uses the packages that are installed beside this interpreter if they satisfy the tree; if not,
    the tree's own set-up downloads what it needs.
    """
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    extras = (*RUN, *(DEV if has_target(tree, "check") else ()))
    if missing := unsatisfied(requirements(project["project"], extras)):
        print(f"{tree.name}: its set-up runs, for it needs {', '.join(missing)}", file=sys.stderr)
        _run(tree, "make", ".venv/.dev-stamp" if DEV[0] in extras else ".venv/.run-stamp", f"PYTHON={sys.executable}")
    else:
        _share(tree, project)
    _run(tree, ".venv/bin/python", "-m", "compileall", "-q", "orchestrator")


def requirements(project: Mapping[str, Any], extras: Sequence[str]) -> list[str]:
    optional = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(item for extra in extras for item in optional.get(extra, ()))]


def unsatisfied(requirements: Iterable[str]) -> list[str]:
    return [text for text in requirements if not _is_satisfied(Requirement(text))]


def _is_satisfied(requirement: Requirement) -> bool:
    if requirement.marker and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def import_folders(project: Mapping[str, Any]) -> list[str]:
    """The folders of a tree that hold its packages, by its pyproject.toml."""
    build = project.get("tool", {}).get("hatch", {}).get("build", {})
    folders: list[str] = build.get("targets", {}).get("wheel", {}).get("dev-mode-dirs") or build.get(
        "dev-mode-dirs", ["."]
    )
    return folders


def _share(tree: Path, project: Mapping[str, Any]) -> None:
    """The tree comes before the packages of this interpreter; no program, no metadata and no code of another ccbed is used."""
    venv.create(tree / ".venv", with_pip=False, symlinks=True)
    (site,) = (tree / ".venv/lib").glob("python3*/site-packages")
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "ccbed.pth").write_text(
        "\n".join([*(str((tree / name).resolve()) for name in import_folders(project)), *packages, ""])
    )
    _describe(tree, site, project["project"])
    _copy_programs(tree / ".venv/bin", project["project"]["scripts"])
    for stamp in (".run-stamp", ".dev-stamp"):
        (tree / ".venv" / stamp).touch()


def _describe(tree: Path, site: Path, project: Mapping[str, Any]) -> None:
    """The metadata of an installed distribution: entry points are found by them."""
    match = re.search(r'^__version__ = "(.+)"', (tree / "orchestrator/__init__.py").read_text(), re.MULTILINE)
    version = match.group(1) if match else "0"
    folder = site / f"{project['name']}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join([*lines, ""]))


def _copy_programs(folder: Path, scripts: Mapping[str, str]) -> None:
    """Its own scripts, and those of the other packages with the interpreter of this environment."""
    own = Path(sys.executable).parent
    for name, target in scripts.items():
        module, function = target.split(":")
        _write_program(folder / name, SCRIPT.format(python=folder / "python", module=module, function=function))
    for program in own.iterdir():
        if (folder / program.name).exists() or not program.is_file():
            continue
        head, _, rest = program.read_bytes().partition(b"\n")
        if head.startswith(b"#!") and b"python" in head:
            _write_program(folder / program.name, f"#!{folder / 'python'}\n{rest.decode()}")
        else:
            (folder / program.name).symlink_to(program)


def _write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def _track(tree: Path) -> None:
    """Tests list the files of their checkout with git."""
    _git(tree, "init", "--quiet")
    _git(tree, "add", "--all")


def _git(folder: Path, *args: str) -> str:
    return _run(folder, "git", *args)


def _run(folder: Path, *argv: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "MAKE", "MFLAGS"))}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(
            f"{' '.join(argv)} in {folder}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout
