"""Values out of a vault: not in what is printed, planned, recorded or kept, whatever the name of their variable."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import beds as cli_beds
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.core.bed.diff import diff
from orchestrator.core.inventory import parse_listing
from orchestrator.model import codec, vaulted
from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.event import Clock, Event, Source
from orchestrator.model.provider import Fetched
from orchestrator.prepare import read_inventory
from orchestrator.prepare.vault import Vault
from orchestrator.run.collect import gather
from orchestrator.store import bed_files as store
from orchestrator.store.journal import Journal

from . import beds
from .test_parse_listing import BIN, encrypt, lay

SECRET, OTHER = "open-sesame", "open-sesame-too"


def bed(**change: Any) -> BedSpec:
    """A bed whose environment, and whose power switch, hold values out of a vault."""
    made = beds.local()
    node = dataclasses.replace(made.nodes[0], env={"LEVEL": "3", "STATION": SECRET, "PIN": "7", "URL": f"a/{OTHER}/b"})
    host = HostSpec(name="h1", power={"off": ("ipmitool", "-P", SECRET), "on": ("ipmitool", "-P", OTHER)})
    spec = dataclasses.replace(made, nodes=(node, *made.nodes[1:]), hosts=(host,), vault=("7", SECRET, OTHER))
    return dataclasses.replace(spec, **change)


def test_what_is_masked_is_revealed_again_and_nothing_is_left_of_it() -> None:
    content = codec.plain(bed())
    del content["vault"]
    masked = vaulted.mask(content, bed().vault)
    assert SECRET not in json.dumps(masked)
    assert "<vault:2>" in json.dumps(masked)
    assert vaulted.is_masked(masked)
    assert vaulted.reveal(masked, bed().vault) == content
    assert not vaulted.is_masked(content)
    assert vaulted.reveal("<vault:9>", bed().vault) == "<vault:9>"
    assert vaulted.hide({f"run {OTHER}": [OTHER]}, bed().vault) == {"run ***": ["***"]}


def test_short_values_are_hidden_where_they_are_the_whole_value_of_a_variable() -> None:
    assert vaulted.names(bed().nodes[0].env, bed().vault) == ("STATION", "PIN", "URL")
    assert vaulted.hide("7 of 77 steps", bed().vault) == "7 of 77 steps"


def test_a_bed_file_holds_no_value_of_a_vault_and_is_read_as_it_was(tmp_path: Path) -> None:
    store.write(tmp_path, bed())
    assert SECRET not in (tmp_path / "beds" / "local.json").read_text()
    kept = tmp_path / "beds" / "local.vault"
    assert (kept.stat().st_mode & 0o777, store.names(tmp_path)) == (0o600, ("local",))
    assert store.read(tmp_path, "local") == bed()
    store.write(tmp_path, dataclasses.replace(beds.local(), vault=()))
    assert not kept.exists()
    store.write(tmp_path, bed())
    store.forget(tmp_path, "local")
    assert not kept.exists()


def test_a_bed_whose_secrets_are_lost_is_not_used(tmp_path: Path) -> None:
    store.write(tmp_path, bed())
    (tmp_path / "beds" / "local.vault").unlink()
    session = Session(state=tmp_path, terminal=terminal.standard())
    with pytest.raises(InfrastructureError, match="the values from its inventory's vault are lost"):
        cli_beds.choose(session, "local")


def test_nothing_that_is_printed_holds_a_value_of_a_bed_that_was_read(tmp_path: Path) -> None:
    store.write(tmp_path, bed())
    out = io.StringIO()
    screen = terminal.Terminal(out=out, err=out, live=True)
    cli_beds.choose(Session(state=tmp_path, terminal=screen), None)
    screen.line(SECRET)
    screen.lines([OTHER])
    screen.status(SECRET)
    screen.warn(SECRET)
    screen.error([f"h1: ipmitool -P {SECRET}"], hint=OTHER)
    screen.table(("A",), [(SECRET,)])
    screen.json(bed())
    assert "open-sesame" not in out.getvalue()
    assert out.getvalue().count("***") >= 8


def test_a_plan_names_the_variables_that_change_and_shows_none_of_their_values() -> None:
    before = bed()
    env = {**before.nodes[0].env, "STATION": "another-value", "NEW": "x"}
    now = dataclasses.replace(before.nodes[0], env=env, hash="f" * 12)
    after = dataclasses.replace(before, nodes=(now, *before.nodes[1:]))
    (change,) = diff(after, beds.up(before), before).of("replace")
    assert change.reason.startswith("env NEW STATION changed (spec ")


def test_a_history_holds_no_value_of_a_vault_whoever_wrote_the_event(tmp_path: Path) -> None:
    value = {"act": {"inject": [{"run": ["ipmitool", "-P", SECRET]}]}, f"ipmitool -P {OTHER}": "exit code 0"}
    event = Event(
        type="ok", f="fault.act", value=value, at=Clock(boot="b", mono=1.0, wall=1.0),
        source=Source(node="n1", incarnation="i", writer="keeper", n=1),
    )  # fmt: skip
    with Journal(tmp_path / "history.jsonl", bed().vault) as book:
        book.append(event)
        assert book.events[0].value == value
    assert "open-sesame" not in (tmp_path / "history.jsonl").read_text()


class OneNode:
    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        for name, content in (
            ("rank-0.log", f"station {SECRET}\n".encode() + b"\xff"),
            ("chunks.bin", SECRET.encode()),
        ):
            file = wanted[0][1] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return [Fetched(path=path, size=1) for path, _ in wanted]


def test_what_ranks_print_is_kept_without_values_of_a_vault(tmp_path: Path) -> None:
    bundle = tmp_path / "run"
    bundle.mkdir()
    gather(OneNode(), {"n1": (("runs/r", ""),)}, bundle, secrets=bed().vault)
    assert (bundle / "nodes/n1/rank-0.log").read_bytes() == b"station ***\n\xff"


def test_everything_that_a_vault_holds_is_known_but_for_settings_that_are_no_secrets(tmp_path: Path) -> None:
    """Values in place, a variable that another one names, a whole encrypted file; the usual pattern is the second."""
    lay(tmp_path, {"pw": "open"})
    whole = "vault_station: from-a-file\nccbed_provider: docker\nccbed_nodes: 2\nccbed_env: {TILE: of-the-file}\n"
    lay(tmp_path, {"group_vars/all/vault.yml": whole})
    argv = [str(BIN / "ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "pw")]
    subprocess.run([*argv, str(tmp_path / "group_vars/all/vault.yml")], capture_output=True, check=True, timeout=900)
    inline = encrypt(tmp_path, "in-its-place", "station").replace("\n", "\n      ")
    hosts = f"""
all:
  hosts:
    h1:
      {inline}
      ccbed_env: {{STATION: "{{{{ station }}}}", LINE: "{{{{ vault_station }}}}"}}
"""
    document = read_inventory.read(
        lay(tmp_path, {"lab.yml": hosts}) / "lab.yml", Vault(files=(str(tmp_path / "pw"),)), tmp_path
    )
    assert document.inventory.hosts[0].variables["ccbed_env"] == {"STATION": "in-its-place", "LINE": "from-a-file"}
    assert document.secrets == ("from-a-file", "in-its-place", "of-the-file")


def test_a_value_of_several_lines_is_hidden_line_by_line() -> None:
    files = parse_listing.SourceFiles(path="lab.yml", decrypted={"c": "first-line\nsecond-line\nend\n"})
    known = parse_listing.secrets(files)
    assert vaulted.hide("rank 0: second-line end", known) == "rank 0: *** end"
    assert vaulted.hide("first-line\nsecond-line\nend", known) == "***"
