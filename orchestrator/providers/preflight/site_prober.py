"""Probes the hosts of a bed for preflight, and its nodes where they have a network of their own."""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...model.bed import BedSpec
from ...model.event import Command
from ...node.files import inbox
from ..bed_commands import BED
from ..sites import Site

RETRY_S = 0.01
LIMIT = 1 << 20


class SiteProber:
    """See model.provider.Prober. ``site``: name of a host -> its site."""

    def __init__(self, bed: BedSpec, site: Callable[[str], Site]) -> None:
        self._bed = bed
        self._site = site

    def probe_host(self, host: str, op: str, deadline_s: float, **args: Any) -> Any:
        return self._site(host).call(op, deadline_s, **args)

    def probe_node(self, node: str, op: str, deadline_s: float, **args: Any) -> Any:
        """Probe inside the node: a fork of its agent runs the operation, and its output is fetched."""
        site, directory = (
            self._site(self._bed.node(node).host),
            f"{self._bed.directory_on(self._bed.node(node).host)}/nodes/{node}",
        )
        key = f"check/{op}-{secrets.token_hex(4)}"
        output_dir = f"exec/{key.partition('/')[2]}"
        value = {"check": {"op": op, "args": args}, "out": f"{directory}/{output_dir}"}
        name = inbox.command_file_name(BED, key)
        command = Command(f="exec", key=key, node=node, deadline_s=deadline_s, value=value)
        site.write(f"{directory}/inbox/{name}", inbox.encode_command(BED, command), deadline_s)
        until = time.monotonic() + deadline_s
        with tempfile.TemporaryDirectory() as folder:
            _read_when_present(site, node, f"done/{name}", Path(folder) / "done", until)
            output = _read_when_present(site, node, f"{output_dir}/stdout", Path(folder) / "stdout", until)
        return _value(node, op, output)


def _read_when_present(site: Site, node: str, path: str, to: Path, until: float) -> str:
    """The text of a file of a node as soon as it exists. Raises TimeoutError."""
    while site.fetch(node, path, to, LIMIT).reason:
        if time.monotonic() > until:
            raise TimeoutError(f"{node} does not respond")
        time.sleep(RETRY_S)
    return to.read_text()


def _value(node: str, op: str, output: str) -> Any:
    try:
        result = json.loads(output)
    except ValueError:
        raise RuntimeError(f"{node}: {op} printed no JSON: {output[-200:]}") from None
    if "problem" in result:
        raise RuntimeError(result["problem"])
    return result["value"]
