"""A bed whose inventory has a vault: its ranks get the values, and no file or line shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ccbed

pytestmark = pytest.mark.e2e

VAULTED, CHANGED = "the-platform-9-34", "the-platform-9-75"
SCRIPT = "import os\nprint('at', os.environ['STATION'])\nassert os.environ['STATION'] == 'the-' + 'platform-9-34'\n"
INVENTORY = """
all:
  hosts:
    localhost: {ansible_connection: local}
  vars:
    ccbed_nodes: 1
    ccbed_env: {STATION: "{{ vault_station }}", LEVEL: "3"}
"""


def encrypted(folder: Path, value: str) -> None:
    file = folder / "group_vars/all/vault.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"vault_station: {value}\n")
    argv = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt", "--vault-password-file", str(folder / "pw")]
    subprocess.run([*argv, str(file)], capture_output=True, check=True, timeout=900)


def showing(*folders: Path) -> list[str]:
    """Files that hold a value. The one file that may is its owner's alone, beside the bed file."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".vault"]
    assert files
    return [str(path) for path in files if b"the-platform" in path.read_bytes()]


def test_no_bundle_bed_file_or_line_shows_a_value_of_the_vault(tmp_path: Path) -> None:
    folder, state, runs = tmp_path / "inventory", tmp_path / "state", tmp_path / "runs"
    script = tmp_path / "job/train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "notes.py").write_text(f"STATION = {VAULTED!r}")
    folder.mkdir()
    (folder / "pw").write_text("open")
    (folder / "vaulted.yml").write_text(INVENTORY)
    encrypted(folder, VAULTED)
    vault = ("--vault-password-file", str(folder / "pw"))
    inventory = str(folder / "vaulted.yml")
    messages = []
    try:
        for args in (
            ("up", inventory, *vault),
            ("plan", inventory, "--json", *vault),
            ("run", str(script), "--nodes", "1", "--runs-dir", str(runs)),
            ("status", "--json"),
        ):
            code, text = ccbed(state, *args)
            assert code == 0, text
            messages.append(text)
        encrypted(folder, CHANGED)
        code, text = ccbed(state, "up", inventory, "--dry-run", *vault)
        assert "env STATION changed" in text
        messages.append(text)
    finally:
        ccbed(state, "down", "vaulted", "--force")
    assert [text for text in messages if "the-platform" in text] == []
    assert showing(runs) == []
    assert any("at ***" in path.read_text() for path in runs.rglob("rank-0.log"))
