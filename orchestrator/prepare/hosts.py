"""The hosts of a bed made ready: those whose fingerprint has changed, all at once; a failure of one keeps the others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.bed import error_explanations, observed_status, preparation
from ..model.bed import BedSpec, HostSpec
from ..model.errors import OwnedError
from ..model.requirements import ENGINE_SOCKET
from ..store import prepared, shipped
from . import facts, host_access, playbook_runs
from .vault import Vault

#: The task of reset.yml that refuses what is another's, or has a run.
HELD = "held"
STAMP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done to the hosts of a bed: which, why, and the parts that they will have been prepared for."""

    bed: BedSpec
    due: tuple[preparation.Due, ...]
    parts: Mapping[str, Mapping[str, Any]]
    images: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``failures``: host, task, what is wrong, what to do next."""

    ready: tuple[str, ...]
    failures: tuple[tuple[str, str, error_explanations.Explanation], ...]
    changed: int


def work(state: Path, bed: BedSpec, *, force: bool = False) -> Work:
    """From what is known on this machine alone: no host is asked."""
    images = {name: image_id for name in preparation.images(bed) if (image_id := local_image(name)) is not None}
    parts = preparation.parts(bed, playbooks_hash(), images)
    due = preparation.find_due(parts, {} if force else prepared.read(state, bed.name))
    if force:
        due = tuple(preparation.Due(host=entry.host, reason="asked for") for entry in due)
    return Work(bed=bed, due=due, parts=parts, images=images)


def prepare(state: Path, work: Work, vault: Vault, notify: playbook_runs.Told) -> Outcome:
    """Prepare the hosts that are due. Those that came to the end are remembered, whatever the others did.

    Raises OwnedError, with nothing done anywhere, where the bed on a host is another's.
    """
    bed = work.bed
    prints = {host: preparation.fingerprint(parts) for host, parts in work.parts.items()}
    variables: dict[str, Any] = {
        **_variables(bed),
        "ccbed_addresses": list(preparation.addresses(bed)),
        "ccbed_fingerprints": prints,
    }
    if work.images:
        variables["ccbed_image_ids"] = dict(work.images)
    away, labels = host_access.read([bed.host(entry.host) for entry in work.due], f"{bed.hostdir}/keeper/keeper.json")
    _refuse_foreign(state, bed, labels)
    failures = tuple((host, "", error_explanations.Explanation(text=text, fix="")) for host, text in away.items())
    hosts = [entry.host for entry in work.due if entry.host not in away]
    if not hosts:
        return Outcome(ready=(), failures=failures, changed=0)
    played = playbook_runs.play(
        playbook_runs.Play(playbook="hosts", inventory=bed.inventory, hosts=hosts, variables=variables, vault=vault),
        notify,
    )
    remembered = {host: _remembered(work.parts[host], played.facts.get(host, {})) for host in played.done}
    prepared.write(state, bed.name, remembered)
    return Outcome(ready=played.done, failures=(*failures, *_failures(bed, played)), changed=played.changed)


def _refuse_foreign(state: Path, bed: BedSpec, labels: Mapping[str, str]) -> None:
    """By the labels of the keepers, as far as they can be read; whoever starts nodes there looks again."""
    from ..providers import host_problems, owners

    statuses = {host: {"keeper": _json(text)} for host, text in labels.items() if text}
    if statuses:
        host_problems.refuse_foreign(bed, owners.identity(state), statuses)


def lost(state: Path, bed: BedSpec, stamps: Mapping[str, str], away: Collection[str]) -> tuple[preparation.Due, ...]:
    """Hosts that are not as they were prepared. ``away``: those that could not say it; they are asked for nothing else."""
    known = prepared.read(state, bed.name)
    hosts = [bed.host(name) for name in away if name in known]
    return preparation.find_changed(known, {**stamps, **_stamps(bed, hosts)})


def _stamps(bed: BedSpec, hosts: Sequence[HostSpec]) -> dict[str, str]:
    """Of the hosts that are reached."""
    script = 'printf "%s\\n%s\\n" "$(cat "$1" 2>/dev/null)" "$(cat /etc/machine-id 2>/dev/null)"'

    def one(host: HostSpec) -> str | None:
        try:
            with host_access.reach(host) as way:
                output = way.run(["sh", "-c", script, "stamp", f"{bed.hostdir}/prepared.json"], "", STAMP_S).output
        except host_access.UnreachableError:
            return None
        left, machine = ["", "", *output.splitlines()][-2:]  # a shell may say something at log-in
        return observed_status.preparation_fingerprint(_json(left), machine)

    with ThreadPoolExecutor(max_workers=16) as pool:
        stamps = dict(zip((host.name for host in hosts), pool.map(one, hosts), strict=True))
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def _json(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def forget(state: Path, bed: BedSpec, hosts: Collection[str]) -> None:
    """They will be prepared again."""
    prepared.forget(state, bed.name, hosts)


def reset(state: Path, bed: BedSpec, vault: Vault, notify: playbook_runs.Told, *, force: bool) -> Outcome:
    """Undo on the hosts what `up` left there: containers of the bed, and its directory.

    Raises OwnedError, with nothing undone anywhere, where a host has another's bed or a run is open; unless forced.
    """
    from ..providers import owners

    hosts = [host.name for host in bed.hosts if host.connection == "ssh"]
    own = {"ccbed_owner": owners.text(bed), "ccbed_owner_id": owners.identity(state)}
    variables = {**_variables(bed), **own, "ccbed_force": force}
    play = playbook_runs.Play(
        playbook="reset", inventory=bed.inventory, hosts=hosts, variables=variables, vault=vault, deadline_s=600
    )
    played = playbook_runs.play(play, notify)
    held = [f"host {host}: {step.said}" for host, step in played.failed.items() if step.task == HELD]
    if held:
        force_command = f"ccbed down {bed.inventory} --reset --force"
        raise OwnedError(*held, hint=f"end it there; to end it by force: {force_command}")
    if not played.failed:
        prepared.forget(state, bed.name)
    return Outcome(ready=played.done, failures=_failures(bed, played), changed=played.changed)


def python(state: Path, bed: BedSpec) -> dict[str, str]:
    """Per host the interpreter that preparation found or installed for ccbed's keeper."""
    known = prepared.read(state, bed.name)
    return {host: str(entry["python"]) for host, entry in known.items() if entry.get("python")}


def playbooks_hash() -> str:
    """The content of everything that preparation runs."""
    folder = shipped.folder("playbooks")
    files = [*sorted(folder.rglob("*.yml")), Path(facts.__file__)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _variables(bed: BedSpec) -> dict[str, Any]:
    return {"ccbed_bed": bed.name, "ccbed_hostdir": bed.hostdir}


def _remembered(parts: Mapping[str, Any], host_facts: Mapping[str, Any]) -> dict[str, Any]:
    newest = sorted(host_facts.get("pythons", {}).items(), key=lambda item: item[1], reverse=True)
    return {"parts": dict(parts), "python": newest[0][0] if newest else "", "firewall": host_facts.get("firewall", "")}


def _failures(
    bed: BedSpec, played: playbook_runs.Played
) -> tuple[tuple[str, str, error_explanations.Explanation], ...]:
    return tuple(advice for host, step in played.failed.items() for advice in _advice(bed.host(host), step))


def _advice(host: HostSpec, step: playbook_runs.Step) -> Iterator[tuple[str, str, error_explanations.Explanation]]:
    if step.task != "check":
        yield host.name, step.task, error_explanations.explain_host(host, step.said, reachable=step.state == "failed")
        return
    for line in step.said.splitlines():  # the playbooks' own words
        text, _, fix = line.partition("; fix: ")
        yield host.name, "", error_explanations.Explanation(text=text, fix=fix)


def local_image(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of an image on this machine; empty if it is not there, None without an engine that can be asked."""
    host = environ.get("DOCKER_HOST") or f"unix://{ENGINE_SOCKET}"
    if not host.startswith("unix://"):
        return None
    try:
        status, answer = facts.ask(host.removeprefix("unix://"), f"/images/{name}/json")
    except OSError:
        return None
    return str(answer.get("Id", "")) if status == 200 else ""
