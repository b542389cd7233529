"""Redaction: detect secrets by name or value, and copy environments without them."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping

#: Names of environment variables whose values are not shown.
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|PRIVATE|COOKIE", re.IGNORECASE)
USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
#: The beginning of a private key in a file or a value (PEM, OpenSSH, PGP).
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|PuTTY-User-Key-File-")
#: Tokens with a recognizable form, as their issuers document them: AWS, GitHub, GitLab, Hugging Face, OpenAI,
#: Slack, Google, JSON web tokens; and the value of an Authorization header.
TOKEN = re.compile(
    r"\b(?:A[KS]IA[0-9A-Z]{16}|gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}"
    r"|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{35}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|\b(?i:bearer)\s+[\w.~+/-]{20,}|\b(?i:authorization)[\"']?\s*[:=]\s*[\"']?(?i:bearer|basic)\s+\S{6,}"
)
#: Shannon entropy in bits per character above which a value looks random, and the fewest characters that are judged.
#: The limits for hex digits (3.0) and base64 (4.5) are those of detect-secrets and truffleHog. Because upper case, lower
#: case and digits are required as well, 4.25 serves for base64: it meets 98 % of random values of 32 characters and 57 %
#: of those of 24, and 0.5 % of the 51,000 longest identifiers in Python packages. With a slash in it, 4.5: paths.
HEX_BITS, HEX_LENGTH = 3.0, 32
BASE64_BITS, PATH_BITS, BASE64_LENGTH = 4.25, 4.5, 20
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_DIGEST = re.compile(r"\bsha(?:1|224|256|384|512):[0-9a-f]{40,128}\b")
#: An assignment within a value, such as ``Server=h;Password=x``.
_INNER = re.compile(r"""(?P<head>(?<![\w-])(?P<name>[A-Za-z_][\w.-]{0,99})["']?[=:]["']?)(?P<value>[^\s"',;&=]+)""")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH = re.compile(r"(?:^|[=:,])(?:[~.]{0,2}/|\w+://)")
#: Names of values that are digests or identifiers.
_DIGESTS = {"commit", "revision", "rev", "sha", "sha1", "sha256", "digest", "hash", "checksum", "uuid", "id", "run"}
_OWN = ("CCBED_", "TORCHELASTIC_")

_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
_ANYWHERE = ("password", "passwd", "passphrase", "secret", "credential", "apikey", "authtoken", "accesstoken")
_AT_END = {"token", "auth", "authorization", "cookie", "pass", "pat", "bearer", "key", "pwd", "sig"}
#: Words at the end of a name that make its value something about a secret, and words that make a token or key not secret.
_ABOUT = {"file", "path", "dir", "directory", "name", "env", "type", "length", "len", "size", "count", "dim", "id"}
_OF_TEXT = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "start", "stop", "end", "new", "per", "image"}
_OF_TABLES = {
    "sort",
    "group",
    "primary",
    "foreign",
    "index",
    "dict",
    "state",
    "cache",
    "label",
    "text",
    "data",
    "column",
}
_PLAIN = re.compile(r"[-+]?\d{1,5}(\.\d*)?|true|false|yes|no|none|null|auto|", re.IGNORECASE)


def redacted(environ: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """A copy of an environment for display. ``names``: variables that the user declared secret."""
    return {name: _shown(name, value, names) for name, value in sorted(environ.items())}


def secret_values(environ: Mapping[str, str], names: Collection[str] = ()) -> tuple[str, ...]:
    """The values of an environment that are secret according to the names of their variables."""
    return tuple(
        value
        for name, value in environ.items()
        if is_named(name, names) or (is_secret_option(name) and not is_trivial(value, name))
    )


def is_secret_option(name: str, names: Collection[str] = ()) -> bool:
    """Whether the value of an option (``--api-key``, ``wandb.token``) is secret. ``names``: declared secret by the user."""
    if is_named(name, names):
        return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    if any(word in "".join(words) for word in _ANYWHERE):
        return True
    preceding = words[-2] if len(words) > 1 else ""
    return words[-1] in _AT_END and preceding not in _OF_TEXT | (_OF_TABLES if words[-1] == "key" else set())


def is_named(name: str, names: Collection[str]) -> bool:
    """Whether the user declared ``name`` secret; dashes and case do not matter."""
    return _plain(name) in {_plain(known) for known in names}


def is_trivial(value: str, name: str = "") -> bool:
    """Whether the value is a word such as ``true``, or a short number without a password's name: not secret."""
    is_password = any(word in _plain(name).replace("_", "") for word in _ANYWHERE)
    return _PLAIN.fullmatch(value) is not None and not (is_password and any(map(str.isdigit, value)))


def has_secret_form(text: str) -> bool:
    """Whether the text contains a private key, a token with a known form, or the user and password of a URL."""
    return any(form.search(text) for form in (PRIVATE_KEY, TOKEN, USERINFO))


@functools.lru_cache(maxsize=512)
def looks_secret(value: str, name: str = "") -> bool:
    """Whether a value looks like a secret by its form or its entropy. ``name``: that of its option or variable."""
    if PRIVATE_KEY.search(value) or TOKEN.search(value):
        return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and words[-1] in _DIGESTS:
        return False
    text = _UUID.sub(" ", _DIGEST.sub(" ", value))
    if _PATH.search(text):
        text = text.replace("/", " ")
    return any(_is_random(run) for run in _RUN.findall(text))


def entropy(text: str) -> float:
    """Shannon's entropy of the characters of ``text``, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _shown(name: str, value: str, names: Collection[str]) -> str:
    return "***" if is_named(name, names) else _displayed(name, value)


@functools.lru_cache(maxsize=1024)
def _displayed(name: str, value: str) -> str:
    """Cached, as the ranks of all nodes have nearly the same environment: one process warms up for them."""
    if SECRET.search(name):
        return "***"
    if not name.startswith(_OWN) and looks_secret(value, name):
        return "***"
    return _INNER.sub(_inner, USERINFO.sub("***@", value))


def _inner(match: re.Match[str]) -> str:
    is_secret = is_secret_option(match["name"]) and not is_trivial(match["value"], match["name"])
    return f"{match['head']}***" if is_secret else match[0]


def _is_random(run: str) -> bool:
    if _HEX.fullmatch(run):
        return len(run) >= HEX_LENGTH and entropy(run) > HEX_BITS
    if not all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", "[0-9]")):
        return False
    return entropy(run) > (PATH_BITS if "/" in run else BASE64_BITS)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
