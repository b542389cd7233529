"""Seeded inputs of every kind: no traceback, no hang, nothing half started, and the right exit code.

Inventories, trials, bundles and command lines are changed at random. Nothing here starts a process on a bed: `run` is given
``--dry-run`` or no bed, and an inventory is only planned.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.store import seal, unpack

from . import scale

pytestmark = pytest.mark.attack

ROOT = Path(__file__).parents[2]
BUNDLES = ROOT / "tests" / "golden" / "bundles"
#: Inputs are made in so many portions, so that no single test takes for ever.
PORTIONS = 10
#: For hangs only.
SECONDS = 120
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**9, 10**30, 1.5, -0.0, 1e300, "", "x", "0", "1e999", "n9", "../..", "/", "\x1b[2J", "é\u202e",
    "a\nb", "{{ x }}", "$(touch x)", "-x", "--", [], {}, [[]], {"": {}}, ["n0", "n0"], {"step": -1}, "auto", "[1:3]", "!vault",
    "&a", "0x10", "1_000", "2026-01-01",
)  # fmt: skip
_WORDS = """
up down status plan run resume watch logs exec check report compare bundle size list heal --help --json --bed -i
--plugins --fail-node --at --recovery --repeat --seed --nodes --dry-run --batch --runs-dir --timeout --no-reference
dp-ring allreduce local lab/n2 n0 latest runs step=3 2 -1 1e9 10s - -- é $(x) ../x x.yml export verify sign
faults trials --fail-over 5% spare
"""
WORDS = (*_WORDS.split(), "", "\x1b[2J", "a b")
#: Verbs of a command line that would bring up, wait or change this machine.
KEPT_OUT = {"up", "image", "doctor", "watch", "logs"}


class HangError(Exception):
    """A command took longer than it may."""


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ccbed(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and output of a command line in this process."""
    out = io.StringIO()
    own_session = terminal_session.Session(
        state=folder / "state", terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64
    )
    with limit(SECONDS):
        return main.run(args, own_session), out.getvalue()


def judged(text: str, code: int, allowed: tuple[int, ...], what: object) -> None:
    assert "internal error of ccbed" not in text, f"{what}\n{text}"
    assert "Traceback" not in text, f"{what}\n{text}"
    assert code in allowed, f"exit {code}: {what}\n{text}"
    assert not [character for character in text if ord(character) < 32 and character not in "\n\t"], f"{what}\n{text!r}"
    assert code in (0, 1, 2) or "error: " in text, f"no error line: {what}\n{text}"


def mutated(document: Any, draw: random.Random) -> Any:
    """A copy in which a part was replaced, dropped, moved or doubled."""
    copy = json.loads(json.dumps(document))
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(_places(copy))
        if not places:
            return draw.choice(VALUES)
        parent, key = draw.choice(places)
        action = draw.random()
        if action < 0.6:
            parent[key] = draw.choice(VALUES)
        elif action < 0.75:
            del parent[key]
        elif isinstance(parent, dict):
            parent[draw.choice(("x", "", "hosts", "vars", "node", "at", f"{key}s", str(key)[:-1]))] = parent[key]
        else:
            parent.append(parent[key])
    return copy


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def garbled(text: str, draw: random.Random) -> str:
    """A text with characters changed, cut or repeated."""
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(text) + 1)
        piece = draw.choice((*"::--[{}'\"#|\t\n\x00é", "&a", "*a", "  ", "!x", "? ", "<<: ", "9" * 50))
        cut = text[:place] + text[place + draw.randint(1, 30) :]
        text = draw.choice((text[:place] + piece + text[place:], cut, text[:place]))
    return text


def written(document: Any, draw: random.Random) -> str:
    """As YAML, now and then garbled."""
    import yaml

    text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
    return garbled(text, draw) if draw.random() < 0.4 else text


INVENTORY = {
    "all": {
        "hosts": {"h1": {"ansible_connection": "local", "ccbed_nodes": 2, "ccbed_env": {"A": "b"}}},
        "vars": {"ccbed_bed": "fuzz", "ccbed_spares": 1, "ccbed_gpus": 0, "ccbed_workdir": "/tmp/fuzz", "ccbed_allow_faults": "node"},
    }
}  # fmt: skip
TRIAL = {
    "trial": "fuzz", "workload": "train-dp", "params": {"algorithm": "ring", "batch": 64, "epochs": 1, "checkpoint_every": 5},
    "world": {"nodes": 4, "ranks_per_node": 1, "backend": "auto"},
    "faults": [{"crash-node": {"node": 2, "at": {"step": 3, "phase": "allreduce"}}}],
    "recovery": {"policy": ["spare", "restart"], "max_restarts": 3}, "checks": ["bit-exact", {"detected-within": "2s"}], "seed": 7,
    "liveness": {"lost": "2s"},
}  # fmt: skip


def an_inventory(folder: Path, draw: random.Random) -> None:
    (folder / "b.yml").write_text(written(mutated(INVENTORY, draw), draw).replace("{{", "{ {").replace("!vault", "!x"))
    text = (folder / "b.yml").read_text()
    code, output = ccbed(folder, "plan", str(folder / "b.yml"))
    judged(output, code, (0, 3, 4), text)


def a_trial(folder: Path, draw: random.Random) -> None:
    document = mutated(TRIAL, draw)
    name = draw.choice(("t.yml", "t.yml", "t.json"))
    (folder / name).write_text(json.dumps(document) if name == "t.json" else written(document, draw))
    code, output = ccbed(folder, "run", str(folder / name), "--dry-run")
    judged(output, code, (0, 3, 4), (folder / name).read_text())


def a_bundle(folder: Path, draw: random.Random) -> None:
    directory = folder / "runs" / "x"
    base = "collective" if draw.random() < 0.1 else "failover"  # whose report takes a second
    shutil.copytree(folder.parent / "bases" / base, directory)
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".bin", ".log", ".txt")
    )
    file = draw.choice(files)
    content = file.read_bytes()
    if file.suffix == ".json" and draw.random() < 0.7:
        file.write_text(json.dumps(mutated(json.loads(content), draw)))
    elif file.suffix == ".jsonl" and draw.random() < 0.7:
        lines = [json.loads(line) for line in content.splitlines()]
        index = draw.randrange(len(lines))
        lines[index] = mutated(lines[index], draw)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        place = draw.randrange(len(content) + 1)
        file.write_bytes(content[:place] + draw.randbytes(draw.randint(0, 40)) + content[place + draw.randint(0, 40) :])
    if draw.random() < 0.9:
        seal.seal(directory)
    verb = draw.choice(
        ("check", "check", "check --json", "report", "report --table", "bundle verify", "logs", "resume")
    )
    code, output = ccbed(folder, *verb.split(), str(directory))
    judged(output, code, (0, 1, 2, 3, 4, 130), f"{verb} {file.relative_to(directory)}")


def a_command(folder: Path, draw: random.Random) -> None:
    words = [word for word in draw.choices(WORDS, k=draw.randint(1, 7)) if word not in KEPT_OUT]
    code, output = ccbed(folder, *words)
    judged(output, code, (0, 1, 2, 3, 4), words)


KINDS: dict[str, tuple[Callable[[Path, random.Random], None], int]] = {
    "inventories": (an_inventory, 1500), "trials": (a_trial, 1500), "bundles": (a_bundle, 500), "commands": (a_command, 1500),
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    for base in ("failover", "collective"):
        with unpack.unpacked(BUNDLES / f"format-1-{base}.tar.gz") as unpacked:
            shutil.copytree(unpacked, folder / "bases" / base)
    return folder


@pytest.mark.parametrize("portion", range(PORTIONS))
@pytest.mark.parametrize("kind", KINDS)
def test_random_inputs_have_an_answer(
    bases: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[[str], None], kind: str, portion: int
) -> None:
    attack, number = KINDS[kind]
    count = scale.count(number) // PORTIONS + 1
    for index in range(count):
        folder = bases / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        monkeypatch.chdir(folder)
        attack(folder, scale.generator(f"{kind}/{portion}/{index}"))
        started = [
            path for path in folder.rglob("*") if path.name in ("keeper.log", "agent.log") and "bases" not in path.parts
        ]
        assert not [path for path in started if "runs" not in path.parts], "something was started"
        assert not list((folder / "state").glob("crash-*"))
    tally(f"fuzz: {kind}, portion {portion + 1} of {PORTIONS}: {count} inputs")


@pytest.mark.parametrize(
    "words",
    [
        "run \udcff",
        f"check {'x' * 5000}",
        f"run x.yml --seed {'9' * 5000}",
        "list runs --runs-dir /dev/null",
        "run /dev/zero",
        "plan /dev/zero",
    ],
)
def test_odd_command_lines_as_processes(tmp_path: Path, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *words.split(" ")], capture_output=True, timeout=900, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode in (0, 3), text
    assert "internal error of ccbed" not in text and "Traceback" not in text
