"""The shells complete verbs, options, beds, nodes, runs, trials and faults; each in the shell itself, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]
PROGRAM = Path(sys.executable).with_name("ccbed")
BASH = """source <(ccbed completion bash)
COMP_LINE='{line}' COMP_POINT={point}
_ccbed_completion ccbed
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = """ccbed completion fish | source
complete -C '{line}'
"""
ZSH = """zmodload zsh/zpty
zpty shell 'PS1= zsh -f -i'
zpty -w shell 'autoload -Uz compinit; compinit -u -D; eval "$(ccbed completion zsh)"; zstyle ":completion:*" list-prompt ""'
zpty -w shell 'print RE''ADY'
zpty -r -m shell heard '*READY*'
zpty -w -n shell $'{line}\\t'
zpty -r -m shell heard '*{expected}*'
print -r -- "$heard"
"""


def complete(desk: Desk, line: str) -> set[str]:
    """What ccbed itself answers to a shell."""
    words = f"ccbed {line}"
    environment = {
        **os.environ, "_CCBED_COMPLETE": "fish_complete", "COMP_WORDS": words,
        "COMP_CWORD": "" if line.endswith(" ") else words.rsplit(maxsplit=1)[-1],
        "XDG_STATE_HOME": str(desk.root / "home"), "XDG_CONFIG_HOME": str(desk.root / "config"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator"],
        env=environment,
        cwd=desk.root,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert not done.stderr, done.stderr
    return {row.split("\t")[0].partition(",")[2] for row in done.stdout.splitlines()}


@pytest.fixture
def desk(ccbed: Desk) -> Desk:
    """With a bed that is up and a run, where a process of its own finds them."""
    (ccbed.root / "home").mkdir()
    (ccbed.root / "state").symlink_to(ccbed.root / "home" / "ccbed", target_is_directory=True)
    (ccbed.root / "home" / "ccbed").mkdir()
    assert ccbed("up", "local.yml") == 0
    run = ccbed.root / "runs" / "2026-11-21T02-00-07Z-dp-ring-3f9c"
    run.mkdir(parents=True)
    (run / "trial.json").write_text("{}")
    return ccbed


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stat", {"status"}),
        ("status --js", {"--json"}),
        ("heal ", {"local"}),
        ("set-aside loc", {"localhost"}),
        ("down local --limit loc", {"localhost"}),
        ("down local --limit localhost,l", {"localhost,localhost"}),
        ("run --bed ", {"local"}),
        ("run dp-r", {"dp-ring"}),
        ("run dp-ring --checkpoint-e", {"--checkpoint-every"}),
        ("run dp-ring --fail-node n", {"n0", "n1", "n2", "n3", "n4"}),
        ("exec local/n", {"local/n0", "local/n1", "local/n2", "local/n3", "local/n4"}),
        ("logs local/k", {"local/keeper"}),
        ("check ", {"latest", "3f9c"}),
        ("check 2026", {"2026-11-21T02-00-07Z-dp-ring-3f9c"}),
        ("init trial --fault slow-", {"slow-link", "slow-node"}),
        ("list inv", {"inventories"}),
        ("up inventories/lo", {"inventories/local.yml"}),
        ("nightly qui", {"quick"}),
        ("image bu", {"build"}),
        ("run no-such-trial --fail-n", {"--fail-node"}),
    ],
)
def test_a_line_is_completed(desk: Desk, line: str, offered: set[str]) -> None:
    last = "" if line.endswith(" ") else line.rsplit(maxsplit=1)[-1]
    assert complete(desk, line) - {last} == offered - {last} or complete(desk, line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_completes(desk: Desk, shell: str) -> None:
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    done = in_shell(desk, shell, script, "ccbed init trial --fault slow-n", "slow-node")
    assert "slow-node" in done.stdout and "slow-link" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ccbed run example:gpt-d", ["gpt-ddp"]),
        ("ccbed run dp-ri", ["dp-ring"]),
        ("ccbed run --bed=lo", ["local"]),
        ("ccbed exec local/n3", ["local/n3"]),
        ("ccbed stat --json", ["status"]),
    ],
)
def test_bash_completes_the_part_of_a_word_that_it_replaces(desk: Desk, line: str, offered: list[str]) -> None:
    """bash begins a word behind each colon and equals sign. The cursor of the last line is behind its second word."""
    done = in_shell(desk, "bash", BASH, line, point=len(line.removesuffix(" --json")))
    assert done.stdout.split() == offered, done.stdout + done.stderr


def in_shell(
    desk: Desk, shell: str, script: str, line: str, expected: str = "", point: int = 0
) -> subprocess.CompletedProcess[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    environment = {
        **os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "XDG_STATE_HOME": str(desk.root / "home"),
        "XDG_CONFIG_HOME": str(desk.root / "config"), "HOME": str(desk.root), "TERM": "dumb",
    }  # fmt: skip
    text = script.format(line=line, point=point or len(line), expected=expected)
    return subprocess.run(
        [program, "-c", text], env=environment, cwd=desk.root, capture_output=True, text=True, timeout=900
    )


def test_an_unknown_shell_is_an_error_with_the_known_ones(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert ccbed("completion") == 3
    assert "no completion for the shell tcsh" in ccbed.err
    assert ccbed("completion", "fihs") == 3 and "did you mean fish?" in ccbed.err
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert ccbed("completion") == 0 and "_CCBED_COMPLETE=fish_complete" in ccbed.out
