"""The base of an image: the one requested, else the stock base, else one made from the distribution's packages."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound
from requests.exceptions import RequestException

from ...model import container
from ...model.errors import InfrastructureError, UsageError
from ...model.frozen import dataclass

#: The default base of images/cpu.Dockerfile.
STOCK = "python:3.11-slim"
#: The name of a base that is made because no registry responds.
MADE = "ccbed/base"
_PACKAGES = "python3,python3-venv,iproute2,ca-certificates,procps"
#: A made base does not need these; they are a fifth of it.
_LEFT_OUT = ("./var/cache/apt/*", "./var/lib/apt/lists/*", "./usr/share/doc/*", "./usr/share/man/*", "./dev/*")
_MAKE_S = 900

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The arguments of debootstrap: suite, components, and the mirror of this machine's packages (empty: its default)."""

    suite: str
    components: str = "main"
    mirror: str = ""


def find(client: Any, wanted: str | None, say: Say) -> str:
    """The reference of a base that this engine has. Raises InfrastructureError with the remaining options."""
    if wanted:
        return wanted if _is_present(client, wanted) else _pull(client, wanted, say)
    release = local_release(Path("/etc/os-release"), _mirrors)
    made = f"{MADE}:{release.suite}" if release else ""
    for name in (STOCK, made):
        if name and _is_present(client, name):
            return name
    try:
        return _pull(client, STOCK, say)
    except InfrastructureError as error:
        if not release or not _can_make():
            raise
        say(f"no registry responds for {STOCK}; making {made} by debootstrap (about a minute)")
        return _make(client, release, made, error)


def _is_present(client: Any, name: str) -> bool:
    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    except APIError as error:
        if not error.is_client_error():
            raise
        raise UsageError(f"--base: {_reason(error)} (got {name})", hint=f"--base {STOCK}") from None
    return True


def _pull(client: Any, name: str, say: Say) -> str:
    say(f"pulling {name}")
    try:
        client.images.pull(*container.split_image(name))
    except (APIError, RequestException) as error:
        raise InfrastructureError(
            f"base image {name}: not on this engine, and it cannot be pulled: {_reason(error)}",
            hint="name one that is there (docker images) with --base; as root on Debian or Ubuntu with debootstrap"
            " installed a base is made without a registry (apt-get install debootstrap)",
        ) from error
    return name


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)


def _can_make() -> bool:
    import os
    import shutil

    return os.geteuid() == 0 and shutil.which("debootstrap") is not None


def local_release(os_release: Path, mirrors: Callable[[], Iterator[str]]) -> Release | None:
    """Debian: bookworm, which has the Python of the stock base. Ubuntu: this machine's release. Else None."""
    try:
        lines = os_release.read_text().splitlines()
    except OSError:
        return None
    facts = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    mirror = next(mirrors(), "")
    if facts.get("ID") == "debian":
        return Release(suite="bookworm", mirror=mirror)
    if facts.get("ID") == "ubuntu" and facts.get("VERSION_CODENAME"):
        return Release(suite=facts["VERSION_CODENAME"], components="main,universe", mirror=mirror)
    return None


def _mirrors() -> Iterator[str]:
    """The mirrors of the distribution's ``main``; archives of security updates hold only a part of it."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE) $(COMPONENT)", "Created-By: Packages"]
    try:
        out = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in out.splitlines():
        site, _, component = line.partition(" ")
        if component == "main" and "security" not in site and site.startswith(("http://", "https://")):
            yield site


def _make(client: Any, release: Release, name: str, cause: Exception) -> str:
    with tempfile.TemporaryDirectory(prefix="ccbed-base-") as folder:
        root = Path(folder) / "root"
        argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", f"--components={release.components}"]
        argv += [release.suite, str(root), *([release.mirror] if release.mirror else [])]
        try:
            _run(argv, cause)
        finally:
            _unmount(root)
        archive = Path(folder) / "base.tar"
        _run(["tar", "-C", str(root), "-cf", str(archive), *(f"--exclude={path}" for path in _LEFT_OUT), "."], cause)
        client.api.import_image_from_file(str(archive), repository=name)  # podman reads no separate tag
    return name


def _unmount(root: Path) -> None:
    """Unmount what a debootstrap that failed leaves mounted, as /proc: it cannot be removed with its directory."""
    targets = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in reversed([target for target in targets if target.is_relative_to(root)]):
        subprocess.run(["umount", "--lazy", str(target)], check=False)


def _run(argv: list[str], cause: Exception) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_MAKE_S, check=False, umask=0o022)
        message, code = (done.stdout + done.stderr).strip().splitlines()[-3:], done.returncode
    except subprocess.TimeoutExpired:
        message, code = [f"not done in {_MAKE_S} s"], 1
    if code:
        raise InfrastructureError(
            f"{argv[0]} failed while the base was made: {' / '.join(message) or f'exit code {code}'}",
            hint="name a base that the engine has with --base, or let the engine reach a registry",
        ) from cause
