"""Redaction: detect secrets by name or value, and copy environments without them."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

USERINFO = re.compile(r"(?<=://)(?!git@)[^/@\s]+@")
#: The beginning of a private key in a file or a value (PEM, OpenSSH, PGP).
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|PuTTY-User-Key-File-")
#: Tokens with a recognizable form, as their issuers document them; the last: the value of an Authorization header.
TOKENS = {
    "AWS": r"A[KS]IA[0-9A-Z]{16}",
    "GitHub": r"gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_\w{22,}",
    "GitLab": r"gl(?:pat|dt|rt|ptt|cbt|soat|agent|imt|ffct)-[\w-]{20,}",
    "models": r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}|(?:gsk|r8|pplx|nvapi|xai|wandb_v1)[_-](?=[\w-]*\d)[\w-]{30,}"
    r"|sk-(?=[\w-]*\d)[\w-]{20,}",
    "chat": r"xox[abeprs]-[\w-]{10,}|xapp-[\w-]{10,}|hooks\.slack\.com/services/[\w/]{30,}"
    r"|discord(?:app)?\.com/api/webhooks/\d+/[\w-]{30,}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|\d{8,10}:AA[\w-]{33}",
    "Google": r"AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{20,}",
    "Azure": r"\w{3}8Q~[\w~.-]{31,34}",
    "payment": r"[rs]k_(?:live|test)_\w{16,}|whsec_\w{20,}|sq0[a-z]{3}-[\w-]{22,}|shp(?:at|ca|pa|ss)_[0-9a-f]{32}",
    "mail and calls": r"SG\.[\w-]{20,}\.[\w-]{20,}|SK[0-9a-f]{32}|key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}",
    "packages": r"npm_\w{36}|pypi-[\w-]{50,}|rubygems_[0-9a-f]{48}|dckr_(?:pat|oat)_[\w-]{27,}|AKCp\w{69,}|cmVmdGtu\w{50,}",
    "HashiCorp": r"hv[bsr]\.[\w-]{24,}|\w{14}\.atlasv1\.[\w-]{60,}",
    "clouds": r"dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{64}|tskey-[\w-]{20,}|nfp_\w{36}|pscale_[a-z]+_[\w.-]{30,}"
    r"|pul-[0-9a-f]{40}|pnu_\w{36}|dp\.[a-z]{2}\.\w{40,}",
    "monitoring": r"glsa_\w{32,}|glc_[\w=]{32,}|sntry[su]_[\w=-]{30,}|NRAK-[A-Z0-9]{27}|dt0c01\.[A-Z0-9]{24}\.\w{60,}",
    "tools": r"lin_api_\w{40}|(?:ntn|secret)_\w{40,}|figd_[\w-]{40}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|ATATT3[\w=-]{100,}"
    r"|CFPAT-[\w-]{43}|pat-(?:na|eu)\d-[0-9a-f-]{36}|pat\w{14}\.[0-9a-f]{64}|AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "JSON web": r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+",
    "HTTP": r"(?i:bearer)\s+[\w.~+/-]{20,}|(?i:authorization)(?:[\"']?\s*[:=,]\s*[\"']?|\s+[\"'])(?i:bearer|basic)\s+\S{6,}",
}
#: The lookahead, which every form fits, rejects most words at once.
TOKEN = re.compile(
    r"\b(?=[\w.~+/=:-]{16}|(?i:bearer|authorization))(?:" + "|".join(f"({form})" for form in TOKENS.values()) + ")"
)
#: Programs, and their option for a password.
_WITH_PASSWORD = {
    r"sshpass|docker\s+login|mysql\w*|mariadb\w*": "-p", "redis-cli": "-a", r"ldap\w+": "-w", "unzip|zip|ipmitool": "-P", "openssl": "-k"
}  # fmt: skip
#: The password among the arguments of a well-known command, in a shell or a list of literals.
COMMAND = re.compile(
    r"""\b(?:(?:curl|wget|https?)["'\s][^\n|;&]{0,200}?(?:-u|--user)(?:["'],)?[ =]?["']?[^\s:"'/]+:"""
    r"""|smbclient["'\s][^\n|;&]{0,200}?-U(?:["'],)?[ ]?["']?[^\s%]+%|(?:"""
    + "|".join(
        rf"""(?:{programs})["'\s](?:[^\n|;&]{{0,200}}?["'\s])??{option}"""
        for programs, option in _WITH_PASSWORD.items()
    )
    + r""")(?:["'],)?[ ]?["']?)(?P<value>[^\s"'|;&$-][^\s"'|;&]+)"""
)
#: An assignment, an argument of an option, or a header in any text: ``a=b``, ``"a": "b"``, ``a = 'b'``, ``--a b``.
ASSIGNED = re.compile(
    r"""(?P<name>(?<![\w$-])(?P<dash>--?)?[A-Za-z_][\w.-]{0,99})"""
    r"""(?:["']?\]?(?::[ \t]*[\w. |\[\]]{1,40}(?==))?(?:=>?|[ \t]+[?+:]?=>?[ \t]*|[ \t]*[:=][ \t]*(?=[rbfu]{0,2}["'])"""
    r"""|[ \t]+:[ \t]+|:(?!//|=)\s*(?:-\s+)?(?:[&!][\w!-]+[ \t]+)?)"""
    r"""|(?(dash)(?:["']?,\s*|["']?\s+)(?:-\s+)?(?!-|["']--?[a-z][a-z-]*["'=])|(?!)))"""
    r"""(?:[rbfu]{0,2}(?:""(?=")|''(?='))?(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)"""
    r"""|(?P<plain>[^\s"',;&][^\s,;&]{0,999}))"""
)
#: Shannon entropy in bits per character above which a value looks random, and the fewest characters that are judged.
#: The limits for hex digits (3.0) and base64 (4.5) are those of detect-secrets and truffleHog. Because upper case, lower
#: case and digits are required as well, 4.25 serves for base64: it meets 98 % of random values of 32 characters and 57 %
#: of those of 24, and 0.5 % of the 51,000 longest identifiers in Python packages. With a slash in it, 4.5: paths.
HEX_BITS, HEX_LENGTH = 3.0, 32
BASE64_BITS, PATH_BITS = 4.25, 4.5
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
#: Digests that say what they are: ``sha256:…``, an integrity of npm, and a commit in a URL.
_DIGEST = re.compile(
    r"\bsha(?:1|224|256|384|512)[:=-][\w+/]{27,128}={0,2}|(?:blob|commit|tree|raw|archive)/[0-9a-f]{40}|\.git@[0-9a-f]{40}"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH = re.compile(r"(?:^|[=:,])(?:[~.]{0,2}/|\w+://)")
#: Names of values that are digests or identifiers.
_DIGESTS = {
    "commit", "revision", "rev", "sha", "sha1", "sha256", "sha512", "integrity", "digest", "hash", "checksum", "etag", "uuid", "guid",
    "id", "run",
}  # fmt: skip
_OWN = ("CCBED_", "TORCHELASTIC_")

_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
#: What makes a name that of a secret: words anywhere in it, at its end (after any of the words there it means something else),
#: and a word at its end that is written together with the one before.
_ANYWHERE = (
    "password", "passwort", "passwd", "passphrase", "passcode", "secret", "credential", "apikey", "authkey", "accesskey", "privatekey",
    "authtoken", "accesstoken", "apitoken",
)  # fmt: skip
_ALONE = (
    "token", "auth", "authorization", "cookie", "pat", "bearer", "jwt", "otp", "sig", "signature", "pwd", "pw", "psw", "cred", "creds"
)  # fmt: skip
_AT_END = {
    **dict.fromkeys(_ALONE, ""),
    "pass": "forward backward num one two multi first second single",
    "pin": "cpu core numa thread gpio",
    "key": "sort group primary foreign index dict state cache label text data column input output target metric config param feature "
    "batch sample query map json lookup hash prompt response public",
}
_GLUED = re.compile(
    r"(?:db|sql|ssh|pg|user|root|admin|require|smtp|mail|ftp|ldap|redis|mongo|login)(?:pass|pwd|pw|pat|key)\Z"
)
_OF_TEXT = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "start", "stop", "end", "new", "per", "image"}
#: Words at the end of a name that make its value something about a secret, and words there that change nothing.
_ABOUT = {"file", "path", "dir", "directory", "name", "env", "type", "length", "len", "size", "count", "dim", "id"}
_QUALIFIERS = {
    "prod", "dev", "staging", "test", "backup", "old", "value", "b64", "base64", "data", "str", "string", "plain", "default"
}  # fmt: skip
#: Names whose values may consist of digits.
_PASSWORDS = re.compile(
    r"passw|passphrase|passcode|secret|credential|apikey|(?:auth|access|api)token|(?:pass|pwd|pw|pin|otp)\d*\Z"
)
_PLAIN = re.compile(r"[-+]?\d{1,5}(\.\d*)?|true|false|yes|no|on|off|none|null|auto|", re.IGNORECASE)
#: What follows ``-p`` and is no password: a port, an address, a number, a path.
_NO_PASSWORD = re.compile(r"[\d.:,x-]+|.*[/\\].*|[\w.-]+:\d+")


def redacted(environ: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """A copy of an environment for display. ``names``: variables that the user declared secret."""
    return {name: _shown(name, value, names) for name, value in sorted(environ.items())}


def secret_values(environ: Mapping[str, str], names: Collection[str] = ()) -> tuple[str, ...]:
    """The values of an environment that are secret according to the names of their variables."""
    return tuple(value for name, value in environ.items() if is_secret(name, value, names))


def is_secret(name: str, value: str, names: Collection[str] = ()) -> bool:
    """Return whether the value of an option, a variable or a key is secret by its name. ``names``: declared secret by the user."""
    return is_named(name, names) or (is_secret_option(name) and not is_trivial(value, name))


@functools.lru_cache(maxsize=2048)
def is_secret_option(name: str) -> bool:
    """Return whether a name is that of a secret: ``--api-key``, ``wandb.token``, ``DB_PASS``, ``-p``."""
    words = _words(name)
    if not words or words[-1] in _ABOUT:
        return name == "-p"
    while len(words) > 1 and (words[-1] in _QUALIFIERS or words[-1].isdigit()):
        words.pop()
    if any(word in "".join(words) for word in _ANYWHERE):
        return True
    last, preceding = words[-1].rstrip("0123456789"), words[-2] if len(words) > 1 else ""
    if last in _AT_END:
        return preceding not in _OF_TEXT and preceding not in _AT_END[last].split()
    return name == "-p" or _GLUED.search(last) is not None


def is_named(name: str, names: Collection[str]) -> bool:
    """Return whether the user declared ``name`` secret; dashes and case do not matter."""
    return _plain(name) in {_plain(known) for known in names}


def is_trivial(value: str, name: str = "") -> bool:
    """Return whether the value is no secret: a word such as ``true``, a short number without a password's name, a directory in PWD."""
    if name == "-p":
        return _NO_PASSWORD.fullmatch(value) is not None
    plain = _plain(name).replace("_", "")
    if plain in ("pwd", "oldpwd") and value.startswith("/"):
        return True
    return _PLAIN.fullmatch(value) is not None and not (_PASSWORDS.search(plain) and any(map(str.isdigit, value)))


def has_secret_form(text: str) -> bool:
    """Return whether the text contains a private key, a token with a known form, or the password of a URL or a command."""
    return any(form.search(text) for form in (PRIVATE_KEY, TOKEN, USERINFO, COMMAND))


@functools.lru_cache(maxsize=512)
def looks_secret(value: str, name: str = "") -> bool:
    """Return whether a value looks like a secret by its form or its entropy. ``name``: that of its option or variable."""
    if PRIVATE_KEY.search(value) or TOKEN.search(value):
        return True
    words = _words(name)
    if words and words[-1] in _DIGESTS:
        return False
    text = without_digests(value)
    if _PATH.search(text):
        text = text.replace("/", " ")
    return any(_is_random(run) for run in _RUN.findall(text))


def without_digests(text: str) -> str:
    """The text without digests that say what they are, and without UUIDs."""
    return _UUID.sub(" ", _DIGEST.sub(" ", text))


def entropy(text: str) -> float:
    """Shannon's entropy of the characters of ``text``, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def assignments(
    text: str, names: Collection[str] = (), *, begin: int = 0, stop: int | None = None
) -> Iterator[tuple[str, str, int, int, bool]]:
    """(name, quote, beginning and end of the value, whether it is secret by its name), also of those within a value.

    ``begin``, ``stop``: where a name may begin.
    """
    position = begin
    while (match := ASSIGNED.search(text, position)) and (stop is None or match.start() < stop):
        start, end = match.span("quoted" if match["quote"] else "plain")
        secret = match["name"] != "-p" and is_secret(
            match["name"], text[start:end], names
        )  # within a text, often mkdir's
        inner = None if secret else ASSIGNED.search(text, match.end("name"))
        if inner and inner.start() < end:
            position = inner.start()
        else:
            yield match["name"], match["quote"] or "", start, end, secret
            position = match.end()


def _shown(name: str, value: str, names: Collection[str]) -> str:
    return "***" if is_named(name, names) else _displayed(name, value)


@functools.lru_cache(maxsize=1024)
def _displayed(name: str, value: str) -> str:
    """Cached, as the ranks of all nodes have nearly the same environment: one process warms up for them."""
    if is_secret(name, value) or (not name.startswith(_OWN) and looks_secret(value, name)):
        return "***"
    shown, position = "", 0
    for _, _, start, end, secret in assignments(value):
        if secret:
            shown, position = f"{shown}{value[position:start]}***", end
    return USERINFO.sub("***@", shown + value[position:])


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _is_random(run: str) -> bool:
    if _HEX.fullmatch(run):
        return len(run) >= HEX_LENGTH and entropy(run) > HEX_BITS
    if not all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", "[0-9]")):
        return False
    return entropy(run) > (PATH_BITS if "/" in run else BASE64_BITS)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
