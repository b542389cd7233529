"""Connects to a rendezvous store without a query to the name server.

torch looks up the name of the address that it connects to, for the messages of its log, and waits for the result
(``SocketImpl`` in ``torch/csrc/distributed/c10d/socket.cpp``). The socket is of IPv6, so the address is mapped
(``::ffff:10.0.0.7``). glibc finds no mapped address in /etc/hosts and asks the name server, once per rank. A name server
that loses one query of a burst delays its rank by 5 s, the time-out of glibc's resolver, and the gang waits for that rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import ipaddress
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NSSWITCH = Path("/etc/nsswitch.conf")


def connect_without_queries() -> None:
    """Replace the TCPStore of ``init_process_group`` in this process and in its forks."""
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    rendezvous.TCPStore = _without_queries(rendezvous.TCPStore)
    _configured_order()  # read once: in each rank it costs 1.3 ms


def _without_queries(connect: Any) -> Any:
    @functools.wraps(connect, updated=())
    def connect_store(host_name: str, *args: Any, **kwargs: Any) -> Any:
        with read_hosts_file_only(host_name):
            return connect(host_name, *args, **kwargs)

    return connect_store


@contextlib.contextmanager
def read_hosts_file_only(address: str) -> Iterator[None]:
    """Look up hosts in /etc/hosts alone, within the block.

    Nothing changes where ``address`` is a name, which may need the name server; where another thread runs, whose look-ups
    would fail; and where this system's own order of look-ups is not known.
    """
    order = _configured_order() if _is_numeric(address) and threading.active_count() == 1 else ""
    if not order or not _set_order("files"):
        yield
        return
    try:
        yield
    finally:
        _set_order(order)


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


@functools.cache
def _configured_order() -> str:
    """This system's order of look-ups; empty where it is not known."""
    try:
        return parse_order(NSSWITCH.read_text())
    except (OSError, UnicodeDecodeError):
        return ""


def parse_order(text: str) -> str:
    """The services of the line ``hosts`` in the text of an nsswitch.conf(5); empty where there is none."""
    line = re.search(r"^[ \t]*hosts[ \t]*:([^#\n]*)", text, re.MULTILINE)
    return line[1].strip() if line else ""


def _set_order(services: str) -> bool:
    """False where the C library has no such function (only glibc has it) or refuses the services."""
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    return configure is not None and configure(b"hosts", services.encode()) == 0
