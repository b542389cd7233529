"""A bundle is signed with an SSH key: tampered evidence, another key and another purpose are noticed, each in one error."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import views
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.main import run
from orchestrator.cli.render.terminal import Terminal
from orchestrator.node.files.event_log import EventLog
from orchestrator.node.hostlink import bed_files
from orchestrator.store import bundle, seal, signing, unpack

BUNDLE = Path(__file__).parents[1] / "golden" / "bundles" / "format-1-collective.tar.gz"
pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture
def directory() -> Iterator[Path]:
    with unpack.unpacked(BUNDLE) as unpacked:
        yield unpacked


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def allowed(key: Path, tmp_path: Path) -> Path:
    file = tmp_path / "allowed"
    file.write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    return file


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=900)
    return path


def ccbed(*arguments: object) -> tuple[int, str]:
    out = io.StringIO()
    session = Session(state=Path("state"), terminal=Terminal(out=out, err=out))
    return run(["bundle", *map(str, arguments)], session), out.getvalue()


def test_a_signed_bundle_names_its_signer(directory: Path, key: Path, allowed: Path) -> None:
    assert "signature" not in ccbed("verify", directory)[1]
    assert ccbed("sign", directory, "--key", key)[0] == 0
    assert "its signature was not checked: give --allowed-signers FILE" in ccbed("verify", directory)[1]
    code, text = ccbed("verify", directory, "--allowed-signers", allowed)
    assert (code, "ada@example.org signed the evidence" in text) == (0, True)
    assert ccbed("verify", directory, "--allowed-signers", allowed, "--signer", "ada@example.org")[0] == 0


def test_the_signature_travels_with_an_export(directory: Path, key: Path, allowed: Path, tmp_path: Path) -> None:
    ccbed("sign", directory, "--key", key)
    ccbed("export", directory, "-o", tmp_path / "run.tar.gz")
    assert ccbed("verify", tmp_path / "run.tar.gz", "--allowed-signers", allowed)[0] == 0


def test_evidence_that_was_edited_and_sealed_again_is_not_what_was_signed(
    directory: Path, key: Path, allowed: Path
) -> None:
    ccbed("sign", directory, "--key", key)
    (directory / "metrics.jsonl").write_text("{}\n")
    assert ccbed("sign", directory, "--key", key)[0] == 2  # what is not as it was sealed is not signed
    seal.seal(directory)
    code, text = ccbed("verify", directory, "--allowed-signers", allowed)
    assert code == 2
    assert "not a signature of ada@example.org for this evidence" in text


def test_a_key_that_is_not_allowed_is_named_as_such(directory: Path, key: Path, allowed: Path, tmp_path: Path) -> None:
    ccbed("sign", directory, "--key", make_key(tmp_path / "other"))
    code, text = ccbed("verify", directory, "--allowed-signers", allowed)
    assert (code, "do not include the key that signed" in text) == (2, True)
    code, text = ccbed("verify", directory, "--allowed-signers", allowed, "--signer", "ada@example.org")
    assert (code, "or another key signed it" in text, "copy the bundle again" in text) == (2, True, False)


def test_a_signature_for_another_purpose_is_none(directory: Path, key: Path, allowed: Path) -> None:
    manifest = directory / seal.MANIFEST
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", manifest], check=True, timeout=900)
    assert ccbed("verify", directory, "--allowed-signers", allowed)[0] == 2


def test_what_is_missing_is_said(directory: Path, key: Path, allowed: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert ccbed("verify", directory, "--allowed-signers", allowed)[1].count("not signed") == 1
    for arguments in (
        ("sign", directory, "--key", missing),
        ("verify", directory, "--allowed-signers", missing),
        ("verify", directory, "--signer", "ada@example.org"),
    ):
        code, text = ccbed(*arguments)
        assert (code, "internal error" in text) == (3, False)


def test_without_ssh_keygen_the_error_says_what_to_install(
    directory: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, text = ccbed("sign", directory, "--key", key)
    assert (code, "ssh-keygen is not on PATH" in text, "OpenSSH" in text) == (3, True, True)


def test_a_keepers_events_are_signed_line_by_line_with_its_own_key(directory: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "events.key", tmp_path / "other.key"
    key.write_bytes(b"k" * 32)
    other.write_bytes(b"o" * 32)
    events = directory / "keepers/keeper/events.jsonl"
    log = EventLog(events, writer="keeper", key=key.read_bytes())
    log.append("note", "node.exit", {"code": -9}, node="n2")
    log.append("note", "fault.injected", {"id": "f0"}, node="n2")
    log.close()

    def sign(digest: str) -> dict[str, str]:
        return {"keeper": hmac.new(key.read_bytes(), f"manifest {digest}".encode(), hashlib.sha256).hexdigest()}

    seal.seal(directory, sign)
    assert ccbed("verify", directory, "--bed-key", key)[0] == 0
    assert ccbed("verify", directory, "--bed-key", other, "--bed-key", key)[0] == 0
    code, text = ccbed("verify", directory, "--bed-key", other)
    assert (code, "events.jsonl:1: not signed by the key of its bed (2 of 2 lines)" in text) == (2, True)
    events.write_text(events.read_text().replace(":-9", ":-6"))
    seal.seal(directory, sign)
    assert "(1 of 2 lines)" in ccbed("verify", directory, "--bed-key", key)[1]


def test_the_keepers_signature_covers_every_file(directory: Path, tmp_path: Path) -> None:
    """The key that signs lies in the directory of a bed, as the keeper draws it."""
    key = tmp_path / "bed/keeper/events.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"k" * 32)

    def sign(digest: str) -> dict[str, str]:
        return {"keeper": bed_files.sign_manifest(str(tmp_path / "bed"), digest)}

    seal.seal(directory, sign)
    assert ccbed("verify", directory, "--bed-key", key)[0] == 0
    assert seal.verify_evidence(directory) == (), "the signature is no evidence"
    plan = directory / "plan.json"
    plan.write_text(plan.read_text() + "\n")
    seal.seal(directory)
    code, text = ccbed("verify", directory, "--bed-key", key)
    assert (code, "manifest-sha256.txt: not signed by the key of its bed" in text) == (2, True)
    assert ccbed("verify", directory)[0] == 0, "without the key nobody notices it here"
    (directory / seal.KEEPERS_SIGNATURES).unlink()
    code, text = ccbed("verify", directory, "--bed-key", key)
    assert (code, "no host agent has signed it" in text) == (2, True)


def test_check_says_which_lines_of_keepers_are_unsigned(directory: Path) -> None:
    assert views.agreement(bundle.load(directory)).signatures == "no host agent signed them"
    seal.seal(directory, lambda digest: {"keeper": "00", "keeper-h1": "00"})
    assert views.agreement(bundle.load(directory)).signatures == "host agents' signatures: 2, not checked here"
    (directory / "keepers/keeper").mkdir(parents=True)
    (directory / "keepers/keeper/events.jsonl").write_text(unsigned_line(directory))
    texts = [doubt.text for doubt in views.agreement(bundle.load(directory)).doubts]
    assert "keepers/keeper/events.jsonl: 1 lines without a host agent's signature" in texts


def unsigned_line(directory: Path) -> str:
    """A line of a keeper about the run, whose signature was stripped."""
    run = bundle.read_history(directory).events[0].value["run"]
    source = {"writer": "keeper", "n": 1}
    at = {"boot": "b", "mono": 1.0, "wall": 1.0}
    line = {
        "type": "note",
        "f": "node.exit",
        "node": "n2",
        "value": {"code": -9},
        "at": at,
        "source": source,
        "run": run,
    }
    return json.dumps(line) + "\n"


def test_a_bundle_without_keepers_events_and_a_key_that_is_not_there_are_said(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "events.key").write_bytes(b"k")
    assert ccbed("verify", directory, "--bed-key", tmp_path / "events.key")[0] == 2
    assert ccbed("verify", directory, "--bed-key", tmp_path / "none")[0] == 3


def test_the_file_of_the_beds_key_is_named_and_check_takes_it(directory: Path, tmp_path: Path) -> None:
    """A bed's name in a bundle of somebody else leads nowhere else."""
    bed = str(json.loads((directory / "plan.json").read_text())["bed"])
    key = tmp_path / "beds" / bed / "keeper/events.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"k" * 32)
    seal.seal(directory, lambda digest: {"keeper": bed_files.sign_manifest(str(key.parent.parent), digest)})
    out = io.StringIO()
    session = Session(state=tmp_path, terminal=Terminal(out=out, err=out))
    run(["bundle", "verify", str(directory)], session)
    assert f"not checked: give --bed-key {key}" in out.getvalue()
    assert signing.keys_of_bed(tmp_path / "none", directory) == ()
    assert run(["check", str(directory), "--bed-key", str(key)], session) == 2, "format 1 is unknown"
    signed = dataclasses.replace(bundle.load(directory), is_signed=True)
    assert "they are those of the bed's key" in views.agreement(signed).signatures
    key.write_bytes(b"o" * 32)
    assert run(["check", str(directory), "--bed-key", str(key)], session) == 2
    assert "manifest-sha256.txt: not signed by the key of its bed" in out.getvalue()
    plan = directory / "plan.json"
    plan.write_text(plan.read_text().replace(f'"bed": "{bed}"', '"bed": "../beds"').replace(f'"{bed}"', '"../beds"', 1))
    assert signing.keys_of_bed(tmp_path, directory) == ()
