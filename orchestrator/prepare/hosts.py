"""Prepares the hosts of a bed whose fingerprint has changed, all at once; a failed host does not affect the others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.bed import engine_kind, error_explanations, observed_status, stale_hosts
from ..model.bed import BedSpec, HostSpec
from ..model.errors import OwnedError
from ..model.frozen import dataclass
from ..model.requirements import ENGINE_SOCKET
from ..providers.docker import engines
from ..store import bed_files, shipped
from . import ansible_settings, facts, host_access, playbook_runs, pull
from .vault import Vault

#: The task of reset.yml that rejects a bed of another owner, or with an open run.
HELD = "held"
STAMP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The hosts to prepare, why, and the parts of their fingerprints."""

    bed: BedSpec
    due: tuple[stale_hosts.Due, ...]
    parts: Mapping[str, Mapping[str, Any]]
    images: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``failures``: host, task, problem with its fix."""

    ready: tuple[str, ...]
    failures: tuple[tuple[str, str, error_explanations.Explanation], ...]
    changed: int


def work(state: Path, bed: BedSpec, *, force: bool = False, hosts: Collection[str] | None = None) -> Work:
    """The hosts among ``hosts`` (None: all) that are due, from the records on this machine alone."""
    images = {name: image_id for name in stale_hosts.images(bed) if (image_id := local_image(name)) is not None}
    parts = stale_hosts.parts(bed, playbooks_hash(), images)
    due = stale_hosts.find_due(parts, {} if force else bed_files.read_prepared(state, bed.name))
    due = tuple(entry for entry in due if hosts is None or entry.host in hosts)
    if force:
        due = tuple(stale_hosts.Due(host=entry.host, reason="asked for") for entry in due)
    return Work(bed=bed, due=due, parts=parts, images=images)


def prepare(state: Path, work: Work, vault: Vault, on_step: playbook_runs.OnStep) -> Outcome:
    """Prepare the hosts that are due. Successful hosts are recorded, even if others fail.

    Raises OwnedError before any change if the bed on a host belongs to another owner.
    """
    bed = work.bed
    prints = {host: stale_hosts.fingerprint(parts) for host, parts in work.parts.items()}
    variables: dict[str, Any] = {
        **_variables(bed),
        "ccbed_addresses": list(stale_hosts.addresses(bed)),
        "ccbed_fingerprints": prints,
    }
    if work.images:
        variables["ccbed_image_ids"] = dict(work.images)
    if logins := engines.logins(stale_hosts.images(bed)):
        variables["ccbed_registry_logins"] = logins
    configured = ansible_settings.read(state).settings
    unreachable, labels = host_access.read(
        [bed.host(entry.host) for entry in work.due], f"{bed.hostdir}/keeper/keeper.json"
    )
    _reject_other_owners(state, bed, labels)
    failures = tuple(
        (host, "", error_explanations.Explanation(text=text, fix="")) for host, text in unreachable.items()
    )
    hosts = [entry.host for entry in work.due if entry.host not in unreachable]
    if not hosts:
        return Outcome(ready=(), failures=failures, changed=0)
    result = playbook_runs.run(
        playbook_runs.PlaybookRun(
            playbook="hosts",
            inventory=bed.inventory,
            hosts=hosts,
            variables=variables,
            vault=vault,
            configured=configured,
        ),
        on_step,
    )
    records = {host: _record(work.parts[host], result.facts.get(host, {})) for host in result.done}
    bed_files.write_prepared(state, bed.name, records)
    return Outcome(ready=result.done, failures=(*failures, *_failures(bed, result)), changed=result.changed)


def _reject_other_owners(state: Path, bed: BedSpec, labels: Mapping[str, str]) -> None:
    """Check the labels of the keepers, as far as they can be read; the start of nodes checks them again."""
    from ..providers import host_problems, owners

    statuses = {host: {"keeper": _json(text)} for host, text in labels.items() if text}
    if statuses:
        host_problems.refuse_foreign(bed, owners.identity(state), statuses)


def lost(
    state: Path, bed: BedSpec, stamps: Mapping[str, str], unreachable: Collection[str]
) -> tuple[stale_hosts.Due, ...]:
    """Hosts that have changed since their preparation. ``unreachable``: hosts without a stamp; only that is read from them."""
    known = bed_files.read_prepared(state, bed.name)
    hosts = [bed.host(name) for name in unreachable if name in known]
    return stale_hosts.find_changed(known, {**stamps, **_stamps(bed, hosts)})


def _stamps(bed: BedSpec, hosts: Sequence[HostSpec]) -> dict[str, str]:
    script = 'printf "%s\\n%s\\n" "$(cat "$1" 2>/dev/null)" "$(cat /etc/machine-id 2>/dev/null)"'

    def read_stamp(host: HostSpec) -> str | None:
        try:
            with host_access.connect_host(host) as access:
                output = access.run(["sh", "-c", script, "stamp", f"{bed.hostdir}/prepared.json"], "", STAMP_S).stdout
        except host_access.UnreachableError:
            return None
        left, machine = ["", "", *output.splitlines()][-2:]  # a shell may print text at log-in
        return observed_status.preparation_fingerprint(_json(left), machine)

    with ThreadPoolExecutor(max_workers=16) as pool:
        stamps = dict(zip((host.name for host in hosts), pool.map(read_stamp, hosts), strict=True))
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def _json(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def forget(state: Path, bed: BedSpec, hosts: Collection[str]) -> None:
    """Let `up` prepare these hosts again."""
    bed_files.forget_prepared(state, bed.name, hosts)


def reset(state: Path, bed: BedSpec, vault: Vault, on_step: playbook_runs.OnStep, *, force: bool) -> Outcome:
    """Remove the containers of the bed and its directory from the hosts.

    Raises OwnedError before any change if a host has a bed of another owner or an open run, unless forced.
    """
    from ..providers import owners

    hosts = [host.name for host in bed.hosts if host.connection == "ssh"]
    own = {"ccbed_owner": owners.text(bed), "ccbed_owner_id": owners.identity(state)}
    variables = {**_variables(bed), **own, "ccbed_force": force}
    run = playbook_runs.PlaybookRun(
        playbook="reset", inventory=bed.inventory, hosts=hosts, variables=variables, vault=vault, deadline_s=600,
        configured=ansible_settings.read(state).settings,
    )  # fmt: skip
    result = playbook_runs.run(run, on_step)
    held = [f"host {host}: {step.message}" for host, step in result.failed.items() if step.task == HELD]
    if held:
        force_command = f"ccbed down {bed.inventory} --reset --force"
        raise OwnedError(*held, hint=f"end it there; to end it by force: {force_command}")
    if not result.failed:
        bed_files.forget_prepared(state, bed.name)
    return Outcome(ready=result.done, failures=_failures(bed, result), changed=result.changed)


def python(state: Path, bed: BedSpec) -> dict[str, str]:
    """Return per host the interpreter for ccbed's keeper, as preparation chose or installed it."""
    known = bed_files.read_prepared(state, bed.name)
    return {host: str(entry["python"]) for host, entry in known.items() if entry.get("python")}


def playbooks_hash() -> str:
    folder = shipped.folder("playbooks")
    scripts = sorted([*folder.rglob("*.yml"), *folder.glob("files/*")])
    digest = hashlib.sha256()
    for file in (*scripts, Path(facts.__file__), Path(pull.__file__)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _variables(bed: BedSpec) -> dict[str, Any]:
    return {"ccbed_bed": bed.name, "ccbed_hostdir": bed.hostdir}


def _record(parts: Mapping[str, Any], host_facts: Mapping[str, Any]) -> dict[str, Any]:
    newest = sorted(host_facts.get("pythons", {}).items(), key=lambda item: item[1], reverse=True)
    return {"parts": dict(parts), "python": newest[0][0] if newest else "", "firewall": host_facts.get("firewall", "")}


def _failures(
    bed: BedSpec, result: playbook_runs.PlaybookResult
) -> tuple[tuple[str, str, error_explanations.Explanation], ...]:
    return tuple(advice for host, step in result.failed.items() for advice in _advice(bed.host(host), step))


def _advice(host: HostSpec, step: playbook_runs.Step) -> Iterator[tuple[str, str, error_explanations.Explanation]]:
    if step.task != "check":
        yield (
            host.name,
            step.task,
            error_explanations.explain_host(host, step.message, reachable=step.state == "failed"),
        )
        return
    for line in step.message.splitlines():  # the playbooks' own messages
        text, _, fix = line.partition("; fix: ")
        yield host.name, "", error_explanations.Explanation(text=text, fix=fix)


def local_image(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of an image on this machine; empty if it is missing, None if no engine responds."""
    path = engine_kind.local_socket(environ)
    if environ.get("DOCKER_HOST") and not path:
        return None
    try:
        status, response = facts.ask(path or ENGINE_SOCKET, f"/images/{name}/json")
    except OSError:
        return None
    return str(response.get("Id", "")) if status == 200 else ""
