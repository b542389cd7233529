"""Report a night to a command or to a webhook. A failed notification is a warning, and never changes the verdict."""

from __future__ import annotations

import base64
import json
import queue
import shlex
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from .culprits import hook
from .night_judgement import NightJudgement
from .suite import Night

#: For the whole notification, retries included; and for one request.
DEADLINE_S, REQUEST_S = 30.0, 10.0
#: Requests of one notification.
ATTEMPTS = 4
SUMMARY = "report/summary.md"


class TransientError(Exception):
    """A request that may succeed when it is repeated."""


class RejectedError(Exception):
    """A request that fails in the same way each time."""


def notify(
    target: str, night_dir: Path, night: Night, judgement: NightJudgement, *, deadline_s: float = DEADLINE_S, pause_s: float = 0.5
) -> str:  # fmt: skip
    """Run a command with the night's directory as its last argument and the summary on stdin, or post JSON to a URL.

    Return ``notified …`` or ``notification failed: …``. It names the program or the host alone: the rest of a target may be secret.
    ``pause_s``: the scale of the pauses between requests, which grow and are random. Raises nothing that the target causes.
    """
    name = describe(target)
    try:
        reason = _deliver(target, night_dir, night, judgement, deadline_s, pause_s)
    except (OSError, ValueError, RuntimeError) as error:  # no space, no thread, a word that is no argument
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    if reason:
        return f"notification failed: {name}: {reason}; the verdict stays as it is"
    return f"notified {name}"


def _deliver(
    target: str, night_dir: Path, night: Night, judgement: NightJudgement, deadline_s: float, pause_s: float
) -> str:
    """Empty, or why it failed."""
    text = _summary(night_dir, judgement)
    if not _is_url(target):
        return _run(target, night_dir, text.encode(errors="replace"), deadline_s)
    body = json.dumps(document(night_dir, night, judgement, text)).encode()
    return _within(deadline_s, lambda: _post(target, body, night.name, deadline_s, pause_s))


def describe(target: str) -> str:
    """A target without what may be secret: the host of a URL, the program of a command."""
    if _is_url(target):
        url = _split(target)
        return f"{url.scheme}://{_host(url)}/…" if url is not None else "a URL that is not valid"
    try:
        words = shlex.split(target)
    except ValueError:
        words = []
    return f"{Path(words[0]).name}{' …' if len(words) > 1 else ''}" if words else "an empty command"


def without_targets(arguments: Sequence[str]) -> list[str]:
    """A command line without its options ``--notify``: their addresses are secret, and a night does not depend on them."""
    result: list[str] = []
    is_target = False
    for argument in arguments:
        if not (is_target or argument == "--notify" or argument.startswith("--notify=")):
            result.append(argument)
        is_target = argument == "--notify" and not is_target
    return result


def document(night_dir: Path, night: Night, judgement: NightJudgement, text: str) -> object:
    """Return what is posted. ``text`` is what Slack, Mattermost and Teams show; ``id`` is the same in a repeated request."""
    bad = [judged for judged in judgement.findings if judged.state in ("fail", "xpass", "warn")]
    return {
        "id": night.name, "text": text, "night": night.name, "suite": night.suite.name, "bed": night.bed, "started": night.started,
        "recorded": night.recorded, "outcome": judgement.outcome, "exit": judgement.exit, "sentence": judgement.sentence,
        "directory": str(night_dir),
        "findings": [
            {"state": judged.state, "gate": judged.finding.gate, "metric": judged.finding.metric, "node": judged.finding.node,
             "culprits": list(judged.finding.culprits), "since": judged.finding.since, "text": judged.finding.text}
            for judged in bad[:50]
        ],
        "findings_total": len(bad),
    }  # fmt: skip


def _is_url(target: str) -> bool:
    return target.strip().lower().startswith(("http://", "https://"))


def _split(target: str) -> SplitResult | None:
    """None if it is no valid URL with a host."""
    try:
        url = urlsplit(target.strip())
        _ = url.port
    except ValueError:
        return None
    return url if url.hostname else None


def _host(url: SplitResult) -> str:
    """Host and port, without user and password."""
    return url.netloc.rpartition("@")[2]


def _summary(night_dir: Path, judgement: NightJudgement) -> str:
    """The sentence alone where the reports could not be written."""
    try:
        return (night_dir / SUMMARY).read_text(errors="replace")
    except OSError:
        return f"{judgement.word.upper()}: {judgement.sentence}\n"


# --- a webhook ----------------------------------------------------------------------------------------------------------


def _within(deadline_s: float, call: Callable[[], str]) -> str:
    """A server that sends a byte now and then satisfies every timeout of a socket, so that the whole has its own."""
    replies: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: replies.put(call()), daemon=True, name="notify").start()
    try:
        return replies.get(timeout=deadline_s)
    except queue.Empty:
        return f"no response within {deadline_s:g} s"


def _post(target: str, body: bytes, identifier: str, deadline_s: float, pause_s: float) -> str:
    """Empty, or why it failed."""
    import tenacity

    url = _split(target)
    if url is None:
        return "not a valid URL"
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_after_delay(deadline_s),
        wait=tenacity.wait_random_exponential(multiplier=pause_s, max=8.0),
        reraise=True,
    )
    try:
        attempts(_request, url, body, identifier, min(REQUEST_S, deadline_s))
    except TransientError as error:
        count = attempts.statistics.get("attempt_number", 1)
        return f"{error} ({count} requests)" if count > 1 else str(error)
    except RejectedError as error:
        return str(error)
    return ""


class _Unredirected(urllib.request.HTTPRedirectHandler):
    """A redirect would send the report to a host that the user did not name."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def _request(url: SplitResult, body: bytes, identifier: str, timeout_s: float) -> None:
    """One request, through the proxies of the environment. Errors of libraries are not quoted: they may have the URL in them."""
    headers = {"Content-Type": "application/json", "User-Agent": "ccbed", "Idempotency-Key": identifier}
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    address = urlunsplit(url._replace(netloc=_host(url)))
    opener = urllib.request.build_opener(_Unredirected())
    try:
        request = urllib.request.Request(address, data=body, headers=headers, method="POST")  # noqa: S310 - http or https
        with opener.open(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        with error:
            _raise_status(error.code)
    except (urllib.error.URLError, OSError, HTTPException) as error:
        raise TransientError(_reason(error, timeout_s)) from None
    except ValueError:
        raise RejectedError("not a valid URL") from None


def _raise_status(status: int) -> None:
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or status >= 500:
        raise TransientError(f"status {status}")
    if 300 <= status < 400:
        raise RejectedError(f"status {status}: redirects are not followed, give the address that it redirects to")
    raise RejectedError(f"status {status}")


def _reason(error: Exception, timeout_s: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no response within {timeout_s:g} s"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return f"the connection ended ({type(cause).__name__})"


# --- a command ----------------------------------------------------------------------------------------------------------


def _run(target: str, night_dir: Path, text: bytes, deadline_s: float) -> str:
    """Empty, or why it failed."""
    try:
        words = [*shlex.split(target), str(night_dir)]
    except ValueError as error:
        return f"not a command: {error}"
    return hook.run_command(words, deadline_s, text) if len(words) > 1 else "not a command"
