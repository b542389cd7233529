"""Everything before the first command of a run: its mark beside the bed first, what makes its directory a run last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.spec import plan as planning
from ..core.spec import planned_acts, plugin_files, required_programs
from ..core.verdict import judge
from ..model import codec, vaulted
from ..model.bed import BedSpec, BedStatus
from ..model.errors import CcbedError
from ..model.launch import Request
from ..model.plan import LeftOut, Plan
from ..model.provider import Provider
from ..model.trial import Trial
from ..node.files import payloads
from ..providers import preflight, systems
from ..store import beds, bundle, durable, fingerprint, inputs, paths, secrets
from . import drive


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A run that is to be begun: what was asked for, where, with which files.

    ``origin``: the directory of the run that this is the twin of; it has the payload and the inputs of that run.
    """

    request: Request
    files: Mapping[str, bytes] = field(default_factory=dict)
    origin: Path | None = None

    @property
    def trial(self) -> Trial:
        return self.request.trial

    @property
    def bed(self) -> BedSpec:
        return self.request.bed

    @property
    def workdir(self) -> Path:
        return Path(self.request.bed.workdir)


def begin(draft: Draft, directory: Path) -> Plan:
    """Prepare the run; the lock of the bed's run is held. If any of it fails, nothing of the run remains.

    An orchestrator that dies here leaves a mark with a directory that is no run (``settling.settle``), or a whole run.
    """
    before = bundle.latest(directory.parent)
    _mark(draft, directory)
    try:
        bundle.make(directory)
        if not draft.origin:
            bundle.link_latest(directory.parent, directory.name)
        plan = _prepare(draft, directory)
        if not draft.origin:
            beds.change_run(draft.workdir, directory.name, directory, begun=True)
        return plan
    except BaseException as error:
        paths.discard(directory)
        if isinstance(error, Exception) and not draft.origin:
            bundle.link_latest(directory.parent, before)
        _unmark(draft, directory)
        if isinstance(error, OSError):
            again = f"ccbed resume {draft.origin}" if draft.origin else draft.request.command
            raise drive.full(error, directory, again) from error
        raise


def renew(request: Request, plan: Plan, directory: Path) -> Plan:
    """The plan for the bed as it is now, of a run that has its inputs, but no history."""
    draft = Draft(request=request)
    status = request.provider.observe(draft.bed)
    new = _plan(draft, status, run_id=plan.run, at=plan.payload, checked=_preflight(draft, status))
    new = replace(
        new, inputs=plan.inputs, inputs_left_out=plan.inputs_left_out, checks=plan.checks, workload=plan.workload,
        secret_names=plan.secret_names, umask=plan.umask,
    )  # fmt: skip
    durable.perform(durable.file(directory / bundle.PLAN, paths.as_json(_shown(new, draft.bed))))
    return new


def read_plan(directory: Path, bed: BedSpec) -> Plan:
    """The plan of a run as it was: what its bundle does not show is in the bed. Raises TornBundleError."""
    shown = vaulted.reveal(paths.document(directory, bundle.PLAN), bed.vault)
    return planning.with_secrets(paths.convert(Plan, shown, directory / bundle.PLAN), bed)


def _shown(plan: Plan, bed: BedSpec) -> Any:
    """The plan as a bundle keeps it."""
    return vaulted.mask(codec.plain(planning.without_secrets(plan)), bed.vault)


def discard(provider: Provider, bed: BedSpec, directory: Path) -> None:
    """Nothing remains of a run that never began, here and on the hosts."""
    paths.discard(directory)
    with suppress(CcbedError, OSError):
        provider.forget(bed, directory.name)


def _mark(draft: Draft, directory: Path) -> None:
    """Raises UsageError, naming the open run."""
    if draft.origin:
        beds.change_run(draft.workdir, draft.origin.name, draft.origin, twin=str(directory.resolve()))
        return
    beds.begin_run(draft.workdir, directory.name, directory.resolve(), draft.request.command)
    secrets.keep(draft.workdir, directory.name, draft.request.secrets)


def _unmark(draft: Draft, directory: Path) -> None:
    if draft.origin:
        beds.end_twin(draft.workdir)
    else:
        beds.end_run(draft.workdir, directory.name)


def _prepare(draft: Draft, directory: Path) -> Plan:
    name = directory.name
    status = draft.request.provider.observe(draft.bed, memory=False)
    with _opened(draft, name), ThreadPoolExecutor(max_workers=2) as pool:
        placed, told = pool.submit(_place, draft), pool.submit(_systems, draft)
        checked = _preflight(draft, status)
        plan = _plan(draft, status, run_id=name, at=placed.result(), checked=checked)
        kept, left_out = _inputs(draft)
        plan = replace(plan, inputs=bundle.sums(kept), inputs_left_out=left_out)
        bundle.write_inputs(directory, _documents(draft, plan, told.result()), kept)
    return plan


@contextmanager
def _opened(draft: Draft, name: str) -> Iterator[None]:
    """The provider is bound to the run; where it does not begin after all, nothing of it stays on the hosts."""
    provider = draft.request.provider
    provider.open(draft.bed, name)
    try:
        yield
    except BaseException:
        with suppress(CcbedError, OSError):
            provider.forget(draft.bed, name)
        raise


def _place(draft: Draft) -> str:
    """Where the ranks find their code."""
    return bundle.load_plan(draft.origin).payload if draft.origin else draft.request.provider.put(draft.files)


def _systems(draft: Draft) -> Mapping[str, Mapping[str, Any]]:
    """What the nodes say that they run on; of those of this machine it need not be asked."""
    if draft.bed.provider in planned_acts.EMULATED:
        return {}
    return systems.read(draft.request.provider, (node.name for node in draft.bed.nodes))


def _preflight(draft: Draft, status: BedStatus) -> preflight.Checked:
    """Raises InfrastructureError with the fix when the bed's hosts lack what a run needs."""
    checked = preflight.examine(draft.bed, status, draft.request.provider.prober(draft.bed))
    refused = preflight.refused(checked.findings)
    if refused:
        raise refused
    return checked


def _plan(draft: Draft, status: BedStatus, *, run_id: str, at: str, checked: preflight.Checked) -> Plan:
    request, provider = draft.request, draft.request.provider
    return planning.plan(
        draft.trial, draft.bed, status, request.catalogue, run=run_id, payload=at,
        capabilities={node.host: provider.capabilities(node.host) for node in draft.bed.nodes},
        data_dir=request.data_dir, clocks=checked.clocks, gaps=checked.gaps, free_memory=checked.free_memory,
        twin=request.twin,
        secret_names=request.secret_names, umask=request.umask,
    )  # fmt: skip


def _fingerprint(draft: Draft, plan: Plan, told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of the nodes; where they are processes that use no GPU, of this machine, which is the same. ``told``: by the nodes."""
    asked: dict[str, Any] = {
        "code": _code(draft), "threads": plan.threads, "backend": plan.backend, "data": plan.data
    }  # fmt: skip
    if draft.bed.provider in planned_acts.EMULATED and plan.backend == "gloo":
        return fingerprint.take(**asked)
    names = (*plan.slots, *plan.spares)
    told = told or systems.read(draft.request.provider, names)
    told = {name: told.get(name, {}) for name in names}
    required_programs.require(draft.trial, draft.bed, draft.request.catalogue, told)
    return fingerprint.of_nodes(told, plan.slots, **asked)


def _code(draft: Draft) -> str:
    """The digest of the payload."""
    return (
        str(paths.document(draft.origin, bundle.FINGERPRINT)["code"]) if draft.origin else payloads.digest(draft.files)
    )


def _documents(draft: Draft, plan: Plan, told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """File name in the bundle -> what is written there before the run begins."""
    request = draft.request
    about = bundle.describe(
        run=plan.run,
        version=__version__,
        command=request.command,
        reason=request.reason,
        bed=plan.bed,
        twin=request.twin,
        twin_of=draft.origin.name if draft.origin else "",
    )
    return {
        bundle.TRIAL: draft.trial,
        bundle.PLAN: _shown(plan, draft.bed),
        bundle.FINGERPRINT: _fingerprint(draft, plan, told),
        bundle.BUNDLE: about,
    }


def _inputs(draft: Draft) -> tuple[Mapping[str, bytes], tuple[LeftOut, ...]]:
    """(the files under ``inputs/``: the user's and the plugins; the user's files that are not there)."""
    if draft.origin:
        return bundle.read_inputs(draft.origin), bundle.load_plan(draft.origin).inputs_left_out
    request = draft.request
    known = (*request.secrets.values(), *draft.bed.vault)
    users, left_out = inputs.of_run(draft.trial, draft.files, request.inputs, known)
    checks = judge.specs(draft.trial, request.catalogue)
    return {**users, **plugin_files.user_sources(draft.trial, checks, request.catalogue)}, left_out
