"""What the copies of a user's files lack: secrets in every form that files write them in, and nothing else."""

from __future__ import annotations

import hashlib
import random
import string
import sys
import time
import uuid
from pathlib import Path

import pytest

from orchestrator.core.spec import redact, redacted_copies
from orchestrator.model import redaction
from orchestrator.model.plan import Redacted
from orchestrator.store import inputs

RANDOM = random.Random(7)
WORD, SCHEME = "hunter2-x", "https:" + "//"
MASK = f"<redacted:{'f' * 16}>"


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(RANDOM.choice(alphabet) for _ in range(count))


HEX, BASE64 = letters(40, "0123456789abcdef"), letters(48)
FILES = {
    "one-line.json": f'{{"lr": 0.1, "password": "{WORD}"}}',
    "one-line.yaml": f"db: {{password: other {WORD}, host: h}}",
    "one-line.toml": f'db = {{ host = "h", password = "{WORD}" }}',
    "export.sh": f"export DB_PASSWORD={WORD}\npython train.py",
    "prefix.sh": f"DB_PASS={WORD} python train.py --lr 1",
    "login.sh": f"wandb login {HEX}\ncurl -u me:{WORD} https://h",
    "commands.sh": f"mysql -u me -p{WORD} db\nsshpass -p {WORD} ssh h",
    "url.json": f'{{"tracking": "https://me:{WORD}@mlflow.example.org"}}',
    "url.toml": f'store = "postgresql://me:{WORD}@db/optuna"',
    "url.py": f'dsn = f"redis://:{WORD}@{{host}}/0"',
    "pip.conf": f"[global]\nindex-url = https://me:{WORD}@pypi.example.org/simple",
    "requirements.txt": f"torch==2.10\n--extra-index-url https://{WORD}@pypi.example.org/simple",
    "settings.py": f'WANDB_API_KEY = "{HEX}"',
    "dict.py": f'DB = {{"user": "me", "password": "{WORD}"}}',
    "keyword.py": f'db = connect(host="h", password="{WORD}")',
    "typed.py": f'api_token: str | None = "{WORD}"\nSECRET = b"""{WORD}"""',
    "environ.py": f'os.environ["WANDB_API_KEY"] = "{HEX}"\nos.environ.setdefault("MYSQL_PWD", "{WORD}")',
    "default.py": f'x = os.environ.get("DB_PASS") or "{WORD}"\ny = os.getenv("DB_PASS", "{WORD}")',
    "list.py": f'PASSWORDS = ["other", "{WORD}"]\nsecrets = {{\n    "db": "{WORD}",\n}}',
    "header.py": f'headers = {{"Authorization": "Token {WORD}"}}',
    "define.h": f'#define DB_PASSWORD "{WORD}"',
    "kubeconfig.yaml": f"users:\n- name: me\n  user:\n    client-key-data: {BASE64}",
    "docker/config.json": '{"auths": {"r.example.org": {"auth": "bWU6aHVudGVyMi14"}}}',
    "manifest.yaml": "apiVersion: v1\nkind: Secret\ndata:\n  login: bWU6aHVudGVyMi14",
    "pod.yaml": f"env:\n- name: DB_PASS\n  value: {WORD}",
    "pod.json": f'{{"env": [{{"name": "DB_PASS", "value": "{WORD}"}}]}}',
    "odbc.ini": f"[db]\nconn = Server=h;User=sa;Password={WORD}",
    "spaces.ini": f"passwd = correct {WORD} battery",
    "short.cfg": f"db_pw: {WORD}",
    "block.yaml": f"db:\n  password: |\n    {WORD}\n    more {WORD}\n  host: h",
    "next-line.yaml": f"password:\n  {WORD}\nhost: h",
    "list.yaml": f"passwords:\n- other\n- {WORD}\nlr: 1",
    "list.json": f'{{"api_keys": ["other", "{WORD}"], "password":\n  "{WORD}"}}',
    "Dockerfile": f"FROM x\nENV DB_PASS {WORD}\nENV A=1 TOKEN={WORD}",
    "Makefile": f"DB_PASS ?= {WORD}\nrun:\n\tHF_TOKEN={WORD} python t.py",
    "workflow.yml": f"- run: DB_PASS={WORD} python t.py\n- name: DB_PASS: str",
    "options.py": f'run(["x", "--password", "{WORD}"])\nrun(["x", "--password={WORD}"])',
    "commands.py": f'run(["mysql", "-p{WORD}"])\nrun(["curl", "-u", "me:{WORD}"])',
    "options.yaml": f'args: ["--password", "{WORD}"]\nmore:\n- --password\n- {WORD}',
    "dense.json": f'["--token","{WORD}"]',
    "flow.yaml": f"args: [--password, {WORD}, --lr, 1]",
    "choice.py": f'token = "abc" if debug else "{WORD}"\npassword = getpass() or "{WORD}"',
    "several.py": f'user, password = "u", "{WORD}"\npassword = "".join(["{WORD}"])',
    "argparse.py": f'p.add_argument("--password", type=str, default="{WORD}")\npassword: str = field(default="{WORD}")',
    "calls.py": f'setattr(cfg, "password", "{WORD}")\np = SecretStr("{WORD}")',
    "wrapped.py": f'password = base64.b64decode("{WORD}")\npassword = \\\n    "{WORD}"',
    "pairs.py": f'get(u, auth=("me", "{WORD}"))\nHTTPBasicAuth("me", "{WORD}")',
    "within.py": f'u = "https://h/x?api_key={WORD}&a=1"\nc = connect("dbname=x password={WORD}")',
    "comment.py": f'# password: {WORD}\n"""Use --password {WORD}."""',
    "string.cpp": f'std::string password("{WORD}"), token{{"{WORD}"}};',
    "colon.ini": f"Password : {WORD}\n[x]\npassword\t{WORD}",
    "redis.conf": f"requirepass {WORD}\nrootpw {WORD}",
    "nginx.conf": f'proxy_set_header Authorization "Basic {WORD}";',
    "anchor.yaml": f"password: &pw {WORD}\ntoken: !!str {WORD}",
    "value-first.yaml": f"env:\n- value: {WORD}\n  name: DB_PASS\nvariables:\n  DB_PASS:\n    value: {WORD}",
    "value-first.json": f'{{"env": [{{"value": "{WORD}", "name": "DB_PASS"}}]}}',
    "names.yaml": f"passwort: {WORD}\ncreds: {WORD}\npsw: {WORD}",
    "more-commands.sh": f"redis-cli -h h -a {WORD}\nldapsearch -x -w {WORD}\nunzip -P {WORD} a.zip\nipmitool -U me -P {WORD} power off\n"
    f"openssl enc -k {WORD}\nsmbclient -U me%{WORD} //h/x\necho {WORD} | docker login --password-stdin r\n"
    f"aws configure set aws_secret_access_key {WORD}",
}
#: Tokens as their issuers write them; in a file they have a name that says nothing.
TOKENS = [
    "AKIA" + letters(16, string.ascii_uppercase), "ghp_" + letters(36), "gldt-" + letters(20), "hf_" + letters(34), "sk-" + letters(90),
    "xoxb-" + letters(40), SCHEME + "hooks.slack.com/services/T1/B2/" + letters(24), "123456789:AA" + letters(33), "AIza" + letters(35),
    "GOCSPX-" + letters(28), "sk_live_" + letters(24), "SG." + letters(22) + "." + letters(43), "SK" + HEX[:32], HEX[:32] + "-us12",
    "npm_" + letters(36), "pypi-" + letters(60), "hvs." + letters(90), "dapi" + HEX[:32], "dop_v1_" + HEX + HEX[:24], "shpat_" + HEX[:32],
    "glsa_" + letters(41), "sntryu_" + HEX, "NRAK-" + letters(27, string.ascii_uppercase), "rubygems_" + HEX + HEX[:8], "pul-" + HEX,
    "PMAK-" + HEX[:24] + "-" + HEX[:34], "AGE-SECRET-KEY-1" + letters(58, string.ascii_uppercase), "lin_api_" + letters(40),
]  # fmt: skip
CLEAN = {
    "train.py": "token = input()\npassword = os.environ['PASSWORD']\nassert token, 'no token: set HF_TOKEN'\n",
    "model.py": 'pad_token = "[PAD]"\nsort_key = "name"\nx = sorted(a, key="b")\ndef f(password: str, token: str = "") -> str: ...\n',
    "clone.py": f'"ssh://git@github.com/x"\n"{SCHEME}github.com/p/p/blob/{HEX}/t"\n"https://{{user}}:{{password}}@h"\n',
    "run.sh": 'python train.py --token $TOKEN --password "${PASSWORD}" --key-dim 64\nmkdir -p out\n',
    "base.yaml": "tokenizer: gpt2-medium\nmax_tokens: 4096000\npassword: ${PASSWORD}\nauth:\n  type: basic\nkey: weight\ntoken: <s>\n",
    "literals.py": 'u = f"password={a.b}&token=%s" % t\nr = re.search(r"token=([^&]+)", "key=value")\nNAMES = ["password", "token"]\n',
    "image.yml": f"image: r/t@sha256:{hashlib.sha256(b'x').hexdigest()}\nrevision: {HEX}\nuuid: {uuid.UUID(int=5)}\n",
    "package.json": '{"integrity": "sha512-' + letters(86) + '==", "key": "value", "pin": false, "pass": true}\n',
}


def copies(files: dict[str, str]) -> dict[str, tuple[str, tuple[Redacted, ...]]]:
    """The copies that a bundle keeps: of a file that counts as secret as a whole, an empty one."""
    result = {}
    for name, text in files.items():
        content, listed = inputs.redacted_copy(name, text.encode())
        result[name] = ("", ()) if inputs.reason_secret(name, text.encode()) else (content.decode(), listed)
    return result


def test_no_copy_holds_a_secret_in_any_form_that_files_have() -> None:
    leaked = {
        name: copy
        for name, (copy, _) in copies(FILES).items()
        if any(secret in copy for secret in (WORD, HEX, BASE64, "bWU6"))
    }
    assert leaked == {}


def test_no_copy_holds_a_token_of_a_known_issuer_or_random_value() -> None:
    values = [*TOKENS, *(letters(40) for _ in range(20))]
    assert [
        value for value in values if value in inputs.redacted_copy("a.py", f'x = "{value}"'.encode())[0].decode()
    ] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", f'{{"secrets":{{"db":"{WORD}"}}}}'), ("a.json", f'{{"credentials":{{"password":"{WORD}"}}}}'),
        ("a.py", f'PASSWORDS={{"{WORD}"}}'), ("a.py", f'auth_password = f"{{cfg.user}}:{WORD}"'),
        ("run.sh", f'tool --token "-{WORD}Ab39"'),
    ],
)  # fmt: skip
def test_brackets_and_dashes_make_no_reference_of_a_secret(name: str, text: str) -> None:
    assert WORD.encode() not in inputs.redacted_copy(name, text.encode())[0]


def test_text_whose_characters_have_two_bytes_is_left_out() -> None:
    project = inputs.Project(root=Path("/w"), files={"a.ini": f"password={WORD}".encode("utf-16")}, left_out={})
    kept, left_out, _ = inputs.select(project, lambda content: False)
    assert (dict(kept), [entry.path for entry in left_out]) == ({}, ["user/a.ini"])


def test_copies_without_secrets_are_equal_to_their_files() -> None:
    assert {name: copy for name, (copy, listed) in copies(CLEAN).items() if listed or copy != CLEAN[name]} == {}


def test_file_line_and_kind_are_listed_and_never_the_value() -> None:
    text = f"lr: 1\npassword: |\n  {WORD}\n  {WORD}\nurl: https://me:{WORD}@h\nhf: hf_{'aB3d' * 9}\n"
    copy, listed = inputs.redacted_copy("a.yaml", text.encode())
    assert {entry.path for entry in listed} == {"a.yaml"}
    kinds = [(entry.line, entry.kind) for entry in listed]
    assert kinds == [(2, "value of password"), (5, "user and password of a URL"), (6, "token (models)")]
    assert copy.count(b"\n") == text.count("\n"), "lines keep their numbers"


def test_our_rules_and_the_detectors_are_both_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that only a detector knows; a detector that is missing or fails redacts the line."""
    line = b'x = my_auth_thing(1, "AKC" + secret_of("abcdefghij"))\n'
    monkeypatch.setattr(inputs, "detect", lambda line: ("abcdefghij",))
    redacted_copies.redact.cache_clear()
    copy, listed = inputs.redacted_copy("a.py", line)
    assert (b"abcdefghij" in copy, [entry.kind for entry in listed]) == (False, ["value that a detector reports"])
    monkeypatch.undo()
    monkeypatch.setattr(inputs, "_detectors", lambda: 1 / 0)
    redacted_copies.redact.cache_clear()
    assert inputs.redacted_copy("a.py", line)[0] == b"<redacted>\n"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)
    inputs._detectors.cache_clear()
    redacted_copies.redact.cache_clear()
    assert inputs.redacted_copy("a.py", line)[0] == b"<redacted>\n"
    redacted_copies.redact.cache_clear()


def test_the_detectors_answer_and_have_no_way_to_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a detector opened a connection"))
    assert set(inputs.detect(f'password = "{WORD}"') or ()) == {WORD}
    assert inputs.detect("x = 1") == ()


def test_names_are_secret_alike_as_option_variable_and_key_of_a_file() -> None:
    secret = [
        "DB_PASS",
        "MYSQL_PWD",
        "GITHUB_PAT",
        "PIN",
        "API_KEY_2",
        "TOKEN_PROD",
        "DBPASS",
        "client-key-data",
        "db_pw",
        "PGPASSWORD",
    ]
    plain = [
        "PWD",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "SSH_AUTH_SOCK",
        "pad_token",
        "sort_key",
        "KEY_FILE",
        "author",
        "forward_pass",
    ]
    for name in (*secret, *plain):
        value = "/w/x7" if name in plain else "x7/w"
        hiding = redact.Redaction(mask=lambda text: MASK)
        shown = {
            "variable": redaction.redacted({name: value})[name],
            "option": hiding.arguments([f"--{name}", value])[1],
            "key": inputs.redacted_copy("a.yaml", f"{name}: {value}".encode())[0].decode(),
        }
        assert {kind for kind, text in shown.items() if value in text} == (set() if name in secret else set(shown)), (
            name
        )


def test_short_options_of_passwords_are_redacted_and_those_of_ports_are_not() -> None:
    def shown(*arguments: str) -> str:
        return " ".join(redact.Redaction(mask=lambda text: MASK).arguments(arguments))

    secret = [("-p", WORD), ("--pin", "1234"), ("--pin=1234",), ("sh", "-c", f"mysql -p{WORD} db")]
    plain = [("-p", "29500"), ("-p", "h:29500"), ("-p", "out/a"), ("sh", "-c", "mkdir -p out"), ("--cpu-pin", "3")]
    assert [arguments for arguments in secret if WORD in shown(*arguments) or "1234" in shown(*arguments)] == []
    assert [arguments for arguments in plain if shown(*arguments) != " ".join(arguments)] == []


def test_identifiers_are_rarely_taken_for_secrets() -> None:
    """Digests, UUIDs, commits and ids of runs with their names: none. Identifiers of code: 0.5 % at most."""
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(100)]
    exact = [
        text
        for number, digest in enumerate(digests)
        for text in (
            f'sha256 = "{digest}"', f"image@sha256:{digest}", f'uuid = "{uuid.UUID(digest[:32])}"', f'x = "{uuid.UUID(digest[:32])}"',
            f'commit = "{digest[:40]}"', f"--hash=sha256:{digest}", f'run = "20261128-112059-train-{digest[:6]}"',
            f"git+https://h/x.git@{digest[:40]}", f"torch-2.{number}.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl",
        )
    ]  # fmt: skip
    assert [text for text in exact if inputs.redacted_copy("a.py", text.encode())[1]] == []
    words = [
        "Distributed",
        "Data",
        "Parallel",
        "Tensor2",
        "imagenet",
        "Train",
        "shards",
        "V3",
        "checkpoint",
        "bf16",
        "key",
        "token",
    ]
    names = [mark.join(RANDOM.sample(words, 4)) for mark in ("_", "", "-", "/") for _ in range(500)]
    alarms = [name for name in names if inputs.redacted_copy("a.py", f'x = "{name}"'.encode())[1]]
    assert len(alarms) <= 0.005 * len(names), alarms


@pytest.mark.parametrize(
    "content",
    [
        b"password" * 2**13,
        b"a.b-c_" * 2**13,
        b"key = " * 2**13,
        b"secrets: [" * 2**12,
        b"aB3dE5fG7hJ9kL1mN3pQ5," * 2**12,
        b"-" * 2**16,
    ],
)
def test_no_content_takes_long_to_copy(content: bytes) -> None:
    began = time.process_time()
    inputs.redacted_copy("large.yaml", content)
    assert time.process_time() - began < 2.0
