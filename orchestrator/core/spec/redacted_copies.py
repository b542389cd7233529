"""Copies of the user's files without secrets. What was redacted is listed by file, line and kind, never by value."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from ...model import redaction
from ...model.plan import Redacted

HIDDEN = "<redacted>"
_NEAR = 400
#: Code in which a value is a literal in quotes: without quotes it is an expression.
LITERALS = {".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
#: Files in which a value may extend to the end of its line.
_LINES = {".yaml", ".yml", ".ini", ".cfg", ".conf", ".toml", ".properties"}
#: A value that stands elsewhere: ``${X}``, ``$X``, ``$(cmd)``, ``{{ x }}``, ``{x}``, ``<token>``, ``%(x)s``, ``env:X``.
_REFERENCE = re.compile(
    r"\$[{(]|\$[A-Z_][A-Z0-9_]*\Z|\{\{|\{\w*\}|(?:\{[^{}\x22':,]*\})+\Z|<[^<>]*>|%[(s]|env:|\*+\Z|\.\.\."
)
#: Names and values that are not joined by an assignment: arguments of a function, ``name: A`` beside ``value: b``, instructions.
_PAIRS = [re.compile(pattern, re.MULTILINE) for pattern in (
    r"""\b(?:setdefault|putenv|setenv|getenv|get|environ)\(\s*["'](?P<name>[\w.-]+)["']\s*(?:,|\)\s*or)\s*["'](?P<value>[^"'\n]+)""",
    r"""\bsetattr\([^,\n]{1,99},\s*["'](?P<name>[\w.-]+)["']\s*,\s*["'](?P<value>[^"'\n]+)""",
    r"""["']-{1,2}(?P<name>[\w.-]+)["'][^)\n]{0,200}?\bdefault\s*=\s*["'](?P<value>[^"'\n]+)""",
    r"""(?P<name>\b\w+)\s{0,9}(?::[^=\n]{1,40})?=\s{0,9}(?:\\\n|[\w.]*(?:str|bytes|ield|b64decode|fromhex)\()\s{0,99}(?:default\s?=\s?)?["'](?P<value>[^"'\n]+)""",
    r"""(?P<name>\b\w+)\s?[({]\s?["'](?P<value>(?=[^"'\s]*\d)(?=[^"'\s]*[A-Za-z])[^"'\s]{8,})["']\s?[)}]""",
    r"""(?P<name>\b\w{0,40}(?:password|passwd|pass|pw|pwd|secret|token))\)?\s?=(?!=)[^=\n]{0,200}(?:\b(?:or|else)\s|(?:,|(?<![\w\])])\[)\s{0,9})["'](?P<value>(?=[^"'\s]*\d)(?=[^"'\s]*[A-Za-z])[^"'\s]{8,})["']""",
    r"""\b(?P<name>auth|\w*Auth|basic_auth)\s?[=(]\s?\(?["'][^"'\n]*["'],\s*["'](?P<value>[^"'\n]+)""",
    r"""\b(?:name|key)["']?\s{0,9}[:=]\s{0,9}["']?(?P<name>[\w.-]+)["']?\s{0,99},?\s{0,99}["']?value["']?\s{0,9}[:=]\s{0,9}["']?(?P<value>[^"'\s,}]+)""",
    r"""\bvalue["']?\s{0,9}[:=]\s{0,9}["']?(?P<value>[^"'\s,}]+)["']?\s{0,99},?\s{0,99}["']?name["']?\s{0,9}[:=]\s{0,9}["']?(?P<name>[\w.-]+)""",
    r"""(?<![\w.-])(?P<name>[\w.-]{1,99})["']?:\s{0,99}\{?\s{0,99}["']?(?:value|default)["']?\s{0,9}:\s{0,9}["']?(?P<value>[^"'\s,}]+)""",
    r"""(?:^[ \t]*(?:ENV|ARG|\#[ \t]*define|setenv)|\baws[ ]configure[ ]set)[ \t]+(?P<name>\w+)[ \t]+["']?(?P<value>[^\s"'=][^\s"']*)""",
    r"""^[ \t]*(?P<name>requirepass|rootpw|passwd|password)[ \t]+["']?(?P<value>(?=\S*\d)[^\s"'=:|>][^\s"']*)["']?[ \t]*$""",
    r"""\becho[ \t]+["']?(?P<value>[^\s"'|$]+)["']?[ \t]*\|[^\n|]*(?P<name>--password-stdin)""",
)]  # fmt: skip
#: Searched in lower case: without regard to case, a search takes five times as long.
_HINT = re.compile("pass|pwd|psw|pw|secret|token|auth|cred|key|cookie|pat|bearer|jwt|otp|sig|pin")
_CANDIDATE = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_NAME_BEFORE = re.compile(r"""(?<![\w.-])([\w.-]{1,99})["']?\]?\s*[:=]\s*["']?\Z""")
#: Values without quotes: the lines of a block, the entries of a list, what brackets enclose.
_BLOCK = re.compile(
    r"""[|>][+-]?\d?[ \t]*\n(?P<indent>[ \t]+).*\n?(?:(?:(?P=indent).*)?(?:\n|\Z))*|(?<=- )[^\n]*(?:\n[ \t]*-[ \t][^\n]*)*"""
)
_BRACKETS = re.compile(r"""\[\s*["'\w][^\]]{0,4000}\]|\(\s*["'][^)]{0,4000}\)|\{\s*["'\w][^}]{0,4000}\}""")
_FLOW, _LINE = re.compile(r"[^,}\]\n]*"), re.compile(r"(?:(?!\s#|\s*$)[^\n])*", re.MULTILINE)
_WORD = re.compile(r"\S*(?<![})\],;\"'])")
#: What our rules leave and the detectors judge: a literal after a name that sounds secret, a long word with digits, a URL with a user.
_SUSPECT = [re.compile(pattern) for pattern in (
    r"""(?:pass|pwd|secret|token(?!iz)|auth|cred|api_?key|private)[^\n]{0,60}?[:=(,]\s*["'](?!<redacted>)[^"'\s]{6,}["']""",
    r"""(?<!\w)(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{20,}(?!\w)""",
    r"""://[^/\s:@]+:(?!<redacted>)[^/\s@]+@""",
)]  # fmt: skip
_LETTERS_AND_DIGITS = re.compile(r"(?=.*[A-Za-z])(?=.*\d).{8,}")
#: Names that mean many things in code and manifests: their values count if they are no words.
_WEAK = {"key", "auth", "sig", "signature"}
_WEAK_IN_CODE = _WEAK | {"token", "cookie", "pat", "bearer", "jwt", "otp", "authorization"}

Span = tuple[int, int, str]
#: The secrets in a line by other rules than ours; None: they are missing or failed, so nothing is known of the line.
Detect = Callable[[str], tuple[str, ...] | None]


@functools.lru_cache(maxsize=256)
def redact(path: str, content: bytes, detect: Detect) -> tuple[bytes, tuple[Redacted, ...]]:
    """(the content without secrets, what was redacted). ``path`` determines how values are written in the file."""
    suffix = PurePosixPath(path.lower()).suffix
    text = content.decode(errors="surrogateescape")
    text, listed = _without(text, _own_spans(text, suffix))
    text, reported = _without(text, _suspect_spans(text, detect))
    redacted = tuple(Redacted(path=path, line=line, kind=kind) for line, kind in sorted({*listed, *reported}))
    return (text.encode(errors="surrogateescape") if redacted else content), redacted


def _without(text: str, spans: Iterable[Span]) -> tuple[str, list[tuple[int, str]]]:
    """(the text with a placeholder for each span, line and kind of each). The lines keep their numbers."""
    parts, listed, position, line = [], [], 0, 1
    for begin, end, kind in sorted(spans, key=lambda span: span[0]):
        if end > position:
            start = max(begin, position)
            line += text.count("\n", position, start)
            parts += [text[position:start], HIDDEN, "\n" * text.count("\n", start, end)]
            listed.append((line, kind))
            line, position = line + text.count("\n", start, end), end
    return "".join([*parts, text[position:]]), listed


def _own_spans(text: str, suffix: str) -> Iterator[Span]:
    kinds = ("", *redaction.TOKENS)
    yield from ((*match.span(), f"token ({kinds[match.lastindex or 0]})") for match in redaction.TOKEN.finditer(text))
    for match in redaction.USERINFO.finditer(text):
        if not _REFERENCE.match(match[0].rpartition(":")[2]):
            yield match.start(), match.end() - 1, "user and password of a URL"
    yield from ((*match.span("value"), "password of a command") for match in redaction.COMMAND.finditer(text))
    yield from _named_spans(text, suffix)
    yield from _random_spans(text, suffix)


def _named_spans(text: str, suffix: str) -> Iterator[Span]:
    """Values that are secret by their names. Only the lines with a word of such names are searched."""
    for pattern in _PAIRS:
        for match in pattern.finditer(text):
            if _counts(match["name"], match["value"], suffix):
                yield *match.span("value"), f"value of {match['name']}"
    position, lower = 0, _lower(text)
    while hint := _HINT.search(lower, position):
        begin, stop = max(_line_start(text, hint.start()), position), _line_end(text, hint.end())
        for name, quote, start, end, is_secret in redaction.assignments(text, begin=begin, stop=stop):
            is_value = quote or suffix not in LITERALS or _BRACKETS.match(text, start) or _is_in_text(text, start, end)
            if is_secret and is_value and _counts(name, text[start:end], suffix):
                yield start, end if quote else _end(text, start, end, suffix), f"value of {name}"
        position = stop


def _is_in_text(text: str, start: int, end: int) -> bool:
    """Return whether a value without quotes, in code, is a part of a literal (``"password=x"``), or of a comment."""
    line = text[_line_start(text, start) : start]
    is_literal = bool(line.count('"') % 2 or line.count("'") % 2)
    is_assigned = is_literal and line.endswith("=") and text[start].isalnum()
    return is_assigned or ((is_literal or "#" in line) and _LETTERS_AND_DIGITS.match(text[start:end]) is not None)


def _end(text: str, start: int, end: int, suffix: str) -> int:
    if several := _BRACKETS.match(text, start) or (_BLOCK.match(text, start) if suffix in _LINES else None):
        return several.end()
    is_flow = re.search(r"[{\[,]", text[_line_start(text, start) : start])
    value = ((_FLOW if is_flow else _LINE) if suffix in _LINES else _WORD).match(text, start)
    return max(value.end(), start + 1) if value else end


def _counts(name: str, value: str, suffix: str) -> bool:
    """Return whether the value of a name in a file is secret: no reference, no key of a nested table, and no word after a weak name."""
    whole, value = value, value.rstrip("})]")
    if (
        not redaction.is_secret(name, value)
        or _REFERENCE.match(whole)
        or _REFERENCE.match(value)
        or value.endswith(":")
    ):
        return False
    weak = _WEAK_IN_CODE if suffix in LITERALS else _WEAK
    return name.lower() not in weak or _LETTERS_AND_DIGITS.match(value) is not None


def _random_spans(text: str, suffix: str) -> Iterator[Span]:
    """Values that look random, in code only in a literal."""
    for match in _CANDIDATE.finditer(text):
        line = text[_line_start(text, match.start()) : match.start()]
        value = re.split(r"[\s\"',]", line)[-1] + match[0] + text[match.end() : match.end() + 1]
        name = _NAME_BEFORE.search(line)
        is_value = suffix not in LITERALS or re.search("[\"']", line)
        if is_value and redaction.looks_secret(value, name[1] if name else ""):
            yield *match.span(), "random value"


def _suspect_spans(text: str, detect: Detect) -> Iterator[Span]:
    """Yield what the detectors find in suspect lines; without detectors, all of such a line."""
    position, lower = 0, _lower(text)
    for first, last in sorted(match.span() for pattern in _SUSPECT for match in pattern.finditer(lower)):
        if first < position:
            continue
        begin, position = _line_start(text, first), _line_end(text, last)
        line = redaction.without_digests(text[begin:position])
        values = detect(line)
        if values is None:
            yield begin, position, "suspect line: the detectors are missing"
        for value in values or ():
            if (
                value
                and HIDDEN not in value
                and not _REFERENCE.match(value)
                and not redaction.is_trivial(value, "password")
            ):
                spans = (match.span() for match in re.finditer(re.escape(value), text[begin:position]))
                yield from ((begin + start, begin + end, "value that a detector reports") for start, end in spans)


def _lower(text: str) -> str:
    """The text in lower case, each character at its place: of a few the lower case has two."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c.lower()[0] for c in text)


def _line_start(text: str, at: int) -> int:
    """The beginning of the line, at most some characters before: a file may be one long line."""
    return text.rfind("\n", max(0, at - _NEAR), at) + 1 or max(0, at - _NEAR)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at, at + _NEAR)
    return min(len(text), at + _NEAR) if end < 0 else end
