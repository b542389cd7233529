"""The requirements of an emulated fabric on this machine, tried before it is created; and the hosts file of its nodes."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.bed import links
from ...model.bed import BedSpec, LinkSpec
from ...model.errors import InfrastructureError
from ...model.requirements import Requirement
from ...node.keeper import fabric as node_fabric

HOSTS = Path("/etc/hosts")
_TRY_S = 10.0
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}


def refuse(bed: BedSpec) -> None:
    """Raises InfrastructureError with a line for each missing requirement, before the bed is created."""
    if lacks := lacking(bed.link):
        hint = "\n".join(dict.fromkeys(lack.fix for lack in lacks))
        positions = (_link_position(bed) if lack.name == links.LINK else f"bed {bed.name}" for lack in lacks)
        raise InfrastructureError(
            *(f"{position}: {lack.text}" for position, lack in zip(positions, lacks, strict=True)), hint=hint
        )


def _link_position(bed: BedSpec) -> str:
    """The position of the link in the inventory: ``file:line: ccbed_link``, without the line if another file sets it."""
    try:
        lines = Path(bed.inventory).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    number = next((n for n, line in enumerate(lines, 1) if line.lstrip(" -").startswith("ccbed_link")), None)
    return f"{bed.inventory}{f':{number}' if number else ''}: ccbed_link"


def lacking(link: LinkSpec | None) -> tuple[Requirement, ...]:
    """The missing requirements. One that prevents further tries is reported alone."""
    if os.geteuid():
        text = f"ccbed_isolation: namespace needs root (this is uid {os.geteuid()})"
        return (Requirement.fail("fabric", text, "the same with sudo; without root: ccbed up inventories/local.yml"),)
    absent = [name for name in _PACKAGES if node_fabric.find_program(name) is None]
    if absent:
        return tuple(
            Requirement.fail("fabric", f"program {name} is missing", f"install {_PACKAGES[name]}") for name in absent
        )
    if not HOSTS.exists():
        text = f"{HOSTS} is missing; the nodes' own hosts files are mounted over it"
        return (Requirement.fail("fabric", text, f"touch {HOSTS}"),)
    lacks = (lack for program, lines in links.probe_commands(link).items() for lack in _tried(program, lines))
    return tuple(dict.fromkeys(lacks))


def _tried(program: str, lines: Mapping[str, str]) -> Iterator[Requirement]:
    """Try the program in namespaces of its own, which end with it."""
    if not lines:
        return
    argv = [
        node_fabric.find_program("unshare"),
        "--net",
        "--mount",
        "--uts",
        node_fabric.find_program(program),
        "-force",
        "-batch",
        "-",
    ]
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            input="".join(f"{line}\n" for line in lines.values()),
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Requirement.fail("fabric", f"{program} does not end within {_TRY_S:g} s", "ps shows what it waits for")
        return
    yield from links.parse_probe(done.returncode, done.stderr, list(lines), platform.release())


def write_hosts(bed: BedSpec) -> None:
    """Write in place: running nodes have mounted the file itself, so they see the new lines at once."""
    try:
        own = HOSTS.read_text(errors="replace").splitlines()
    except OSError:
        own = []
    text = links.hosts_file({node.name: node.address for node in bed.all_nodes}, own).encode()
    fd = os.open(Path(bed.workdir) / node_fabric.HOSTS, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    finally:
        os.close(fd)
