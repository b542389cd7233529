"""A helper of a host in a thread of this process, reached through pipes instead of a network."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.node.hostlink.link_server import LinkServer
from orchestrator.node.hostlink.request_handler import Operations
from orchestrator.providers.ssh.host_requests import Link


class Pipes:
    """What a channel is to a link: bytes in, bytes out, an end.

    File objects: a thread of a link that is late must not take the bytes of a later pipe with the same descriptor.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.source, self._sink = os.fdopen(source, "rb", buffering=0), os.fdopen(sink, "wb", buffering=0)

    def recv(self, size: int, /) -> bytes:
        return self.source.read(size)

    def sendall(self, data: bytes, /) -> None:
        left = memoryview(data)
        while left:
            left = left[self._sink.write(left) :]

    def close(self) -> None:
        self._sink.close()


@contextmanager
def serving(hostdir: Path, operations: Operations | None = None) -> Iterator[Pipes]:
    """A helper that serves until the pipes are closed. It ends with the block."""
    requested, requesters = os.pipe()
    message, saying = os.pipe()
    helper = LinkServer(str(hostdir), [], operations or {})

    def serve() -> None:
        helper.run(requested, saying)
        os.close(requested)
        os.close(saying)

    thread = threading.Thread(target=serve)
    thread.start()
    pipes = Pipes(message, requesters)
    try:
        yield pipes
    finally:
        pipes.close()
        thread.join(600)
        helper.close()
        pipes.source.close()


class Heard:
    """What a link handed over, for a test to wait for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.frames: list[tuple[Mapping[str, Any], bytes]] = []
        self.lost: list[str] = []

    def frame(self, header: Mapping[str, Any], body: bytes) -> None:
        with self._changed:
            self.frames.append((header, body))
            self._changed.notify_all()

    def loss(self, link: Link, reason: str) -> None:
        with self._changed:
            self.lost.append(reason)
            self._changed.notify_all()

    def file(self, name: str) -> bytes:
        """The bytes of a file as they came, by their offsets."""
        content = b""
        for header, body in list(self.frames):
            if header.get("file") == name:
                assert header["at"] in (0, len(content)), "no byte is missing or doubled"
                content = content[: header["at"]] + body
        return content

    def wait(self, done: Any, timeout_s: float = 600.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: done(self), timeout_s), [header for header, _ in self.frames]
