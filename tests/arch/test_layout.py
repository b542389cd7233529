"""A folder list that reads as the architecture: files are named after their idea, with a line that says it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
NO_IDEA = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc", "base"}
#: Pages that the project may point at; everything else would rot, or be fetched by somebody.
HOSTS = {
    "www.apache.org",
    "example.org",
    "www.w3.org",
    "archive.ics.uci.edu",
    "doi.org",
    "arxiv.org",
    "creativecommons.org",
    "json-schema.org",
    "download.docker.com",  # packages that the playbooks install, where the user names no mirror
    "nvidia.github.io",
}
#: Tables that cite the public documents that their figures are from.
CITING = {Path("orchestrator/nightly/shipped_limits.yml")}
#: Marks of unfinished work, unmerged text, and paths of one person's machine.
FORBIDDEN = {
    "a mark of unfinished work": re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|HAC[K])\b"),
    "a merge mark": re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)", re.MULTILINE),
    "somebody's home": re.compile(r"(?<![\w.$}])/(?:home|root|Users)/\w"),
}


def tracked() -> list[Path]:
    """All files of the repository; where it is no checkout, those that lie there."""
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
    names = [name for name in done.stdout.split("\0") if name]
    folders = ("orchestrator", "tests")
    files = [ROOT / name for name in names] or [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return [file for file in files if file.is_file()]


def sources() -> list[Path]:
    return [file for file in tracked() if file.suffix == ".py"]


def texts() -> list[tuple[Path, str]]:
    contents = []
    for file in tracked():
        content = file.read_bytes()
        if b"\0" not in content[:8192] and file.name != "LICENSE" and file.parent.name != "vendor":
            contents.append((file.relative_to(ROOT), content.decode("utf-8", errors="replace")))
    return contents


def test_files_are_named_after_their_idea() -> None:
    assert [str(file) for file in sources() if file.stem in NO_IDEA or file.parent.name in NO_IDEA] == []


def test_every_module_of_the_package_says_what_it_is() -> None:
    silent = [
        str(file)
        for file in sources()
        if file.is_relative_to(ROOT / "orchestrator") and not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []


def test_no_text_has_what_does_not_belong_there() -> None:
    problems = [f"{file}: {what}: {hit.group()}" for file, text in texts() for what, sign in FORBIDDEN.items()
             for hit in sign.finditer(text)]  # fmt: skip
    assert problems == []


def test_links_lead_to_places_that_last() -> None:
    link = re.compile(r"https?://([A-Za-z0-9.-]+\.[a-z]{2,})")
    problems = {
        f"{file}: {host}" for file, text in texts() for host in link.findall(text) if host not in HOSTS and file not in CITING
    }  # fmt: skip
    assert problems == set()


def test_every_folder_of_python_is_a_package() -> None:
    bare = {file.parent for file in sources() if file.is_relative_to(ROOT / "orchestrator")}
    rank = ROOT / "orchestrator" / "rank"
    exempt = {
        ROOT / "orchestrator" / "data",
        ROOT / "orchestrator" / "jobs" / "examples",
        rank / "user",
        rank / "watcher" / "site",
    }
    assert sorted(str(folder) for folder in bare - exempt if not (folder / "__init__.py").exists()) == []


TOP_LEVEL = {
    ".ci", ".gitignore", ".github", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE", "README.md",
    "conftest.py", "images", "inventories", "orchestrator", "playbooks", "pyproject.toml", "tests",
}  # fmt: skip


def test_the_top_level_holds_what_the_user_chose() -> None:
    assert {file.relative_to(ROOT).parts[0] for file in tracked()} <= TOP_LEVEL
