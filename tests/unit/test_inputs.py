"""Which files beside a script enter a bundle, and what is said of the others."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import orchestrator
from orchestrator import plugins
from orchestrator.model.plan import LeftOut
from orchestrator.node.files import payloads
from orchestrator.store import inputs, rank_payload, secrets

PACKAGE = Path(orchestrator.__file__).parent
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"

SECRET_FILES = {
    ".env": "A=b\n",
    ".env.local": "A=b\n",
    "prod.env": "A=b\n",
    "server.pem": "x",
    "tls.key": "x",
    "id_rsa": "x",
    "deploy": KEY,
    "deploy.txt": "text before\n" + KEY,
    "rsa.json": '{"key": "-----BEGIN RSA PRIVATE KEY-----\\nabc"}',
    "group_vars.yml": "$ANSIBLE_VAULT;1.1;AES256\n3061\n",
    "vars.yml": "db: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n",
    "lab.yml": "all:\n  hosts:\n    h1: {ansible_host: 10.0.0.1}\n",
    "hosts": "[all]\nh1 ansible_host=10.0.0.1 ansible_user=root\n",
    "bed.json": '{"all": {"vars": {"ccbed_nodes": 4}}}',
    "credentials.json": "{}",
    "service-account-1.json": "{}",
    "notes.txt": "the token is ghp_" + "a1B2" * 9,
    "manifest.yaml": "kind: Secret\ndata: {login: bWU=}\n",
}
REDACTED_FILES = {
    "config.yaml": "lr: 0.1\nwandb:\n  api_key: 0123abcdef\n",
    "settings.toml": 'password = "correct horse"\n',
    "helper.py": 'TOKEN = "hf_' + "aB3d" * 9 + '"\n',
}
KEPT_FILES = {
    "train.py": "import model\ntoken = input()\npassword = os.environ['PASSWORD']\n",
    "model.py": "KEYS = ['a']\n",
    "token.py": "class Token: ...\n",
    "run.sh": "python train.py --token $TOKEN\n",
    "config/base.yaml": "lr: 0.1\ntokenizer: gpt2-medium\nmax_tokens: 4096000\npassword: ${DB_PASSWORD}\n",
    "requirements.txt": "torch==2.10\n",
    "pyproject.toml": "[project]\nname = 'x'\n",
}
OTHER_FILES = {"data.bin": "x" * 100, "README.md": "text", "weights.pt": "y"}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    for name, content in {
        **SECRET_FILES,
        **REDACTED_FILES,
        **KEPT_FILES,
        **OTHER_FILES,
        ".git/config": "x",
        "venv/lib.py": "x",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "link.py").symlink_to("/etc/hostname")
    return tmp_path


def selected(directory: Path) -> tuple[Mapping[str, bytes], dict[str, LeftOut]]:
    project = rank_payload.read_directory(directory, in_place=False)
    kept, left_out, _ = inputs.select(project, lambda content: b"known-secret" in content)
    return kept, {entry.path.removeprefix("user/"): entry for entry in left_out}


def test_code_and_configuration_are_kept(beside: Path) -> None:
    kept, _ = selected(beside)
    copies = {name.removeprefix("user/"): content.decode() for name, content in kept.items()}
    assert copies.keys() == {*KEPT_FILES, *REDACTED_FILES}
    assert {name: copies[name] for name in KEPT_FILES} == KEPT_FILES


def test_secrets_in_code_and_configuration_are_redacted_in_the_copies_and_listed(beside: Path) -> None:
    kept, _, redacted = inputs.select(rank_payload.read_directory(beside, in_place=False), lambda content: False)
    copies = {name: kept[f"user/{name}"].decode() for name in REDACTED_FILES}
    assert copies == {
        "config.yaml": "lr: 0.1\nwandb:\n  api_key: <redacted>\n",
        "settings.toml": 'password = "<redacted>"\n',
        "helper.py": 'TOKEN = "<redacted>"\n',
    }
    lines = {(entry.path.removeprefix("user/"), entry.line) for entry in redacted}
    assert lines == {("config.yaml", 3), ("settings.toml", 1), ("helper.py", 1)}


@pytest.mark.parametrize("name", SECRET_FILES)
def test_a_secret_file_is_named_and_neither_kept_nor_hashed(beside: Path, name: str) -> None:
    kept, left_out = selected(beside)
    assert f"user/{name}" not in kept
    assert left_out[name].sha256 == ""
    assert name in rank_payload.read_directory(beside, in_place=False).files, (
        "a script that reads it still can: it travels"
    )
    assert left_out[name].size_bytes == len(SECRET_FILES[name])


def test_other_files_are_named_with_their_digest_and_what_does_not_travel_without(beside: Path) -> None:
    os.utime(beside / "data.bin", (0, 86400))
    _, left_out = selected(beside)
    assert left_out["data.bin"].sha256 == hashlib.sha256(b"x" * 100).hexdigest()
    assert left_out["data.bin"].modified == "1970-01-02T00:00:00Z"
    assert left_out["README.md"].reason == "neither code nor configuration"
    unsent = {".git": "hidden", "venv": "not a part of a project", "link.py": "a link"}
    assert {name: left_out[name].reason for name in unsent} == unsent
    assert all(left_out[name].sha256 == "" for name in unsent)


def test_a_file_that_holds_a_redacted_value_is_left_out(beside: Path) -> None:
    (beside / "launch.sh").write_text("python train.py known-secret\n")
    kept, left_out = selected(beside)
    assert "user/launch.sh" not in kept
    assert left_out["launch.sh"].reason == inputs.KNOWN


def test_a_payload_with_secrets_is_salted_and_one_without_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    catalogue = plugins.discover(())

    def digest(salt: bytes) -> str:
        project = rank_payload.read_directory(tmp_path, in_place=False)
        return payloads.content_hash(rank_payload.collect(PACKAGE, catalogue, project, salt))

    assert digest(b"1") == digest(b"2")
    for name, content in {".env": "PASSWORD=a\n", "settings.py": "PASSWORD = 'correct horse'\n"}.items():
        (tmp_path / name).write_text(content)
        assert digest(b"1") != digest(b"2")
        (tmp_path / name).unlink()


def test_placeholders_depend_on_a_key_of_the_state_directory(tmp_path: Path) -> None:
    mask, second, other = (secrets.mask(tmp_path / name) for name in ("a", "a", "b"))
    assert mask("x") == second("x") != other("x")
    assert (tmp_path / "a" / secrets.KEY).stat().st_mode & 0o777 == 0o600
    assert hashlib.sha256(b"x").hexdigest()[:16] not in mask("x")


def test_the_secrets_of_a_run_are_kept_for_it_alone_until_it_ends(tmp_path: Path) -> None:
    kept = secrets.OfRun(secrets={"<redacted:0>": "a"}, environment={"A": "b"}, exports={"C": "d"})
    secrets.keep(tmp_path, "r1", kept)
    assert (tmp_path / secrets.OF_RUN).stat().st_mode & 0o777 == 0o600
    assert secrets.of_run(tmp_path, "r1") == kept
    assert secrets.of_run(tmp_path, "r2") == secrets.OfRun()
    secrets.forget(tmp_path, "r2")
    assert secrets.of_run(tmp_path, "r1") == kept
    secrets.forget(tmp_path, "r1")
    assert not (tmp_path / secrets.OF_RUN).exists()


@pytest.mark.parametrize("content", [b"\n" * 2**19, b" " * 2**19, b"a.b-c_" * 2**16, b"a = " * 2**16, b"-" * 2**19])
def test_no_content_takes_long_to_look_through(content: bytes) -> None:
    began = time.process_time()
    assert inputs.reason_secret("user/large.json", content) == ""
    assert time.process_time() - began < 2.0
