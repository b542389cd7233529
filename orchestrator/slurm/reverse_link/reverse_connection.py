"""The connection to a host that connects back: the same helper and frames as over SSH, on a TLS stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

from ...model.bed import BedSpec, HostSpec
from ...providers.ssh.connection_errors import HostError
from ...providers.ssh.helper_start import Started
from ...providers.ssh.remote_host import RemoteSite
from .host_stream import HostStream
from .listener import Listener

_MAX_HELLO = 1 << 16
#: How often the host's process is looked at while its connection is awaited.
_SLICE_S = 0.25


class ReverseConnection:
    """See ``ssh.host_connection.Connection``: a stream whose other end is the host's link server already."""

    def __init__(self, stream: HostStream) -> None:
        self.stream = stream

    @property
    def alive(self) -> bool:
        return not self.stream.is_ended

    def is_responding(self, within_s: float) -> bool | None:
        """Not known: only the host can open a connection."""
        return None

    def close(self) -> None:
        self.stream.close()


def start(host: HostSpec, connection: ReverseConnection, deadline_s: float) -> Started:
    """Wait for the hello of the host's link server. Raises OSError or EOFError."""
    try:
        line = connection.stream.receive_line(_MAX_HELLO, deadline_s)
        return Started(channel=connection.stream, hello=json.loads(line)["hello"], rest=b"")
    except (EOFError, TimeoutError, ValueError, KeyError) as error:
        raise OSError(f"its link server did not start: {error}") from error


def make_site(
    bed: BedSpec, host: HostSpec, listener: Listener, explain: Callable[[str], str], ended: Callable[[str], str]
) -> RemoteSite:
    """The site of a host that connects back; not opened yet.

    ``explain``: name of a host -> why it may not have connected; ``ended``: why it never will, empty if it may.
    """

    def connect(host: HostSpec, deadline_s: float) -> ReverseConnection:
        until = time.monotonic() + deadline_s
        while True:
            try:
                return ReverseConnection(listener.take(host.name, max(0.0, min(_SLICE_S, until - time.monotonic()))))
            except TimeoutError:
                if reason := ended(host.name):
                    raise HostError(reason) from None
                if time.monotonic() > until:
                    reason = "; ".join(part for part in (explain(host.name), listener.rejection(host.name)) if part)
                    text = f"did not connect back within {deadline_s:g} s" + (f": {reason}" if reason else "")
                    raise HostError(text) from None

    def start_helper(connection: ReverseConnection, deadline_s: float) -> Started:
        return start(host, connection, deadline_s)

    bed_on_host = replace(bed, hostdir=bed.directory_on(host.name))
    return RemoteSite(bed_on_host, host, connect, start=start_helper, upkeep=listener.upkeep)
