"""Everything before the first command of a run: recorded beside the bed first, and complete with its last file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.spec import own_paths, planning
from ..core.verdict import judge
from ..core.verdict import twin as twins
from ..model import codec, vaulted
from ..model.bed import BedSpec, BedStatus
from ..model.errors import CcbedError
from ..model.frozen import dataclass, field, replace
from ..model.gang import Isolation, WorkDir
from ..model.launch import Request
from ..model.plan import Plan
from ..model.provider import Provider
from ..model.trial import REPLACE, Trial
from ..node.files import payloads
from ..providers import node_files as files
from ..providers import preflight
from ..store import bed_files, bundle, durable, inputs, paths, rank_payload, secrets
from . import drive, work_dirs


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A run to begin: its request, the files of its payload, and the user's project.

    ``origin``: the directory of the run whose twin this is; the twin has its payload and inputs. ``hidden``: files that a twin
    must not see; ``views``: ends the view of its files.
    """

    request: Request
    files: Mapping[str, bytes] = field(default_factory=dict)
    project: inputs.Project | None = None
    origin: Path | None = None
    hidden: Sequence[str] = ()
    views: ExitStack = field(default_factory=ExitStack)

    @property
    def trial(self) -> Trial:
        return self.request.trial

    @property
    def bed(self) -> BedSpec:
        return self.request.bed

    @property
    def workdir(self) -> Path:
        return Path(self.request.bed.workdir)


class NotComparable(CcbedError):
    """A reference run would not begin as the run did."""


def needs_twin(request: Request) -> bool:
    """Return whether a check of the trial compares the run with its twin."""
    return judge.needs_twin(judge.specs(request.trial, request.catalogue), request.catalogue)


def begin(draft: Draft, directory: Path) -> Plan:
    """Prepare the run. Hold the lock of the bed's run. If any step fails, nothing of the run remains.

    An orchestrator that dies here leaves an open run without its files (see ``abandon.settle``), or a whole run.
    """
    previous = bundle.latest(directory.parent)
    _record(draft, directory)
    try:
        # again: `up` and `down` refuse an open run, and this run was not open until now
        bed_files.refuse_changing(Path(draft.request.state), draft.bed.name)
        bundle.make(directory)
        if not draft.origin:
            bundle.link_latest(directory.parent, directory.name)
        plan = _prepare(draft, directory)
        if not draft.origin:
            bed_files.change_run(draft.workdir, directory.name, directory, begun=True)
        return plan
    except BaseException as error:
        paths.discard(directory)
        if isinstance(error, Exception) and not draft.origin:
            bundle.link_latest(directory.parent, previous)
        _erase(draft, directory)
        if isinstance(error, OSError):
            command = f"ccbed resume {draft.origin}" if draft.origin else draft.request.command
            raise drive.storage_error(error, directory, command) from error
        raise


def renew(request: Request, plan: Plan, directory: Path) -> Plan:
    """Plan a run that has its inputs, but no history, for the bed as it is now."""
    draft = Draft(request=replace(request, placement=plan.placement))
    status = request.provider.observe(draft.bed)
    checked = _preflight(draft, status)
    new = _plan(draft, status, directory, payload_path=plan.payload, checked=checked, work_dir=plan.work_dir)
    new = replace(
        new, inputs=plan.inputs, inputs_left_out=plan.inputs_left_out, inputs_redacted=plan.inputs_redacted, checks=plan.checks,
        workload=plan.workload, secret_names=plan.secret_names, umask=plan.umask,
    )  # fmt: skip
    durable.perform(durable.file(directory / bundle.PLAN, paths.as_json(_shown(new, draft.bed))))
    return new


def read_plan(directory: Path, bed: BedSpec) -> Plan:
    """Read the plan of a run; the secrets that its bundle masks come from the bed. Raises TornBundleError."""
    shown = vaulted.reveal(paths.document(directory, bundle.PLAN), bed.vault)
    return planning.with_secrets(paths.convert(Plan, shown, directory / bundle.PLAN), bed)


def _shown(plan: Plan, bed: BedSpec) -> Any:
    """Return the plan as the bundle stores it: without secrets."""
    return vaulted.mask(codec.plain(planning.without_secrets(plan)), bed.vault)


def discard(provider: Provider, bed: BedSpec, directory: Path) -> None:
    """Remove a run that never began, on the controller and on the hosts."""
    paths.discard(directory)
    with suppress(CcbedError, OSError):
        provider.forget(bed, directory.name)


def _record(draft: Draft, directory: Path) -> None:
    """Record the run beside the bed as open. Raises UsageError where another run is."""
    if draft.origin:
        bed_files.change_run(draft.workdir, draft.origin.name, draft.origin, twin=str(directory.resolve()))
        return
    bed_files.begin_run(draft.workdir, directory.name, directory.resolve(), draft.request.command)
    request = draft.request
    of_run = secrets.OfRun(secrets=request.secrets, environment=request.environment, exports=request.exports)
    secrets.keep(draft.workdir, directory.name, of_run)


def _erase(draft: Draft, directory: Path) -> None:
    if draft.origin:
        bed_files.end_twin(draft.workdir)
    else:
        bed_files.end_run(draft.workdir, directory.name)


def _prepare(draft: Draft, directory: Path) -> Plan:
    name = directory.name
    status = draft.request.provider.observe(draft.bed, memory=False)
    with _opened(draft, name), ThreadPoolExecutor(max_workers=2) as pool:
        installed, facts = pool.submit(_install_payload, draft), pool.submit(_system_facts, draft)
        checked = _preflight(draft, status)
        code = installed.result()
        plan = _plan(
            draft, status, directory, payload_path=code, checked=checked, work_dir=_work_dir(draft, directory, code)
        )
        files, left_out, redacted = _inputs(draft)
        plan = replace(plan, inputs=bundle.sums(files), inputs_left_out=left_out, inputs_redacted=redacted)
        bundle.write_inputs(directory, _documents(draft, plan, facts.result()), files)
    return plan


@contextmanager
def _opened(draft: Draft, name: str) -> Iterator[None]:
    """Bind the provider to the run. If the preparation fails, remove the run from the hosts."""
    provider = draft.request.provider
    provider.open(draft.bed, name)
    try:
        yield
    except BaseException:
        with suppress(CcbedError, OSError):
            provider.forget(draft.bed, name)
        raise


def _install_payload(draft: Draft) -> str:
    """Return the directory where the ranks find their code."""
    if draft.origin:
        return bundle.load_plan(draft.origin).payload
    in_place = draft.project is not None and draft.project.in_place
    return draft.request.provider.put(rank_payload.without_project(draft.files) if in_place else draft.files)


def _system_facts(draft: Draft) -> Mapping[str, Mapping[str, Any]]:
    """Read hardware and versions from the nodes; their interpreter may be another one than that of the orchestrator."""
    return files.read_systems(draft.request.provider, (node.name for node in _undrained(draft).nodes))


def _preflight(draft: Draft, status: BedStatus) -> preflight.Checked:
    """Raises InfrastructureError with the fix when the bed's hosts lack what a run needs."""
    bed = _undrained(draft)
    checked = preflight.examine(bed, status, draft.request.provider.prober(bed))
    refused = preflight.failure(checked.requirements)
    if refused:
        raise refused
    return checked


def _undrained(draft: Draft) -> BedSpec:
    """Return the bed without the nodes on drained hosts, which may be switched off."""
    drained = draft.request.placement.drained
    return replace(draft.bed, nodes=tuple(node for node in draft.bed.nodes if node.name not in drained))


def _work_dir(draft: Draft, directory: Path, payload_path: str) -> WorkDir | None:
    """Return where the ranks find the user's script: in place, or in a directory of this run that its nodes share.

    A run with a twin, and the twin, work in copies of their own: neither sees what the other writes.
    """
    original = bundle.load_plan(draft.origin).work_dir if draft.origin else None
    root = original.root if original else str(draft.project.root) if draft.project else ""
    if not root:
        return None
    if not draft.bed.shares_file_system:
        path = f"{draft.bed.shared_dir}/{directory.name}/{paths.WORK}"
        return WorkDir(root=root, path=path, source=f"{payload_path}/{inputs.USER}".rstrip("/"))
    own = directory.resolve() / paths.WORK
    if not (draft.origin or (draft.request.twin and needs_twin(draft.request))):
        left_out = (directory.parent.resolve(),)
        if draft.request.twin_after and (why := work_dirs.keep_snapshot(Path(root), own, left_out)):
            draft.request.on_note(f"no reference run will follow: {why}; with --reference they are")
            bundle.keep_reason(directory, why)
        return WorkDir(root=root, path=root)
    kept = draft.origin / paths.WORK if draft.origin else None
    source = kept if kept and kept.is_dir() else Path(original.path if original else root)
    work_dirs.copy_project(source, own, left_out=(directory.parent.resolve(),))
    return WorkDir(root=root, path=str(own))


def _plan(
    draft: Draft,
    status: BedStatus,
    directory: Path,
    *,
    payload_path: str,
    checked: preflight.Checked,
    work_dir: WorkDir | None,
) -> Plan:
    request, provider = draft.request, draft.request.provider
    params, run_id = draft.trial.params, directory.name
    shared = f"{draft.bed.shared_dir}/{run_id}"
    own = str(directory.resolve()) if draft.bed.shares_file_system else shared
    words = own_paths.of_run(params, f"{own}/{paths.OUT}", run_id, is_reference=draft.origin is not None)
    mapped = (path for text, path in words.items() if text != own_paths.OUT)
    isolation, work_dir = _isolated(draft, directory, work_dir, (shared, own, *mapped))
    return planning.plan(
        draft.trial, draft.bed, status, request.catalogue, run=run_id, payload=payload_path,
        capabilities={node.host: provider.capabilities(node.host) for node in draft.bed.all_nodes},
        data_dir=request.data_dir, clocks=checked.clocks, gaps=checked.gaps, free_memory=checked.free_memory,
        twin=request.twin or request.twin_after,
        secret_names=request.secret_names, umask=request.umask, work_dir=work_dir,
        isolation=isolation, paths=words,
        placement=request.placement, machines=provider.machines(draft.bed), refused=_refused_hosts(draft),
    )  # fmt: skip


def _isolated(
    draft: Draft, directory: Path, work_dir: WorkDir | None, writable: tuple[str, ...]
) -> tuple[Isolation | None, WorkDir | None]:
    """Return what isolates a script's reference run (a private view of the files, else Landlock), and its project.

    In a view the project has the path of the original run's. Raises NotComparable.
    """
    if not draft.origin or not twins.is_script(draft.trial):
        return None, work_dir
    original, view = bundle.load_plan(draft.origin).work_dir, None
    if draft.bed.shares_file_system:
        is_moved = work_dir is not None and original is not None and original.path == original.root
        moved = {str(Path(work_dir.root).resolve()): work_dir.path} if is_moved and work_dir else {}
        Path(writable[0]).mkdir(mode=0o700, parents=True, exist_ok=True)
        keep = [str(Path(path).resolve()) for path in (draft.bed.workdir, *writable[:2])]
        view = work_dirs.open_view(draft.views, directory, keep=keep, moved=moved, hidden=draft.hidden)
        if view and is_moved and work_dir:
            work_dir = replace(work_dir, path=work_dir.root)
    if draft.hidden and not view:
        others = f" and {len(draft.hidden) - 1} more" if draft.hidden[1:] else ""
        raise NotComparable(
            f"it would begin with what the run wrote outside of its project, {draft.hidden[0]}{others}:"
            " use {out} in its arguments, --map, or --reference, which runs the reference run first"
        )
    return Isolation(writable=writable, view=view, env=work_dirs.OFFLINE), work_dir


def _refused_hosts(draft: Draft) -> Mapping[str, str]:
    """Prepare the hosts for replacements; host -> why that failed."""
    may_replace = REPLACE in draft.trial.recovery.policy
    return drive.prepare_replacement_hosts(draft.request.provider, draft.bed) if may_replace else {}


def _fingerprint(draft: Draft, plan: Plan, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Describe the nodes of the plan. ``facts``: by node."""
    common: dict[str, Any] = {
        "code": _code(draft), "threads": plan.threads, "backend": plan.backend, "data": plan.data
    }  # fmt: skip
    names = (*plan.slots, *plan.spares)
    facts = {name: facts.get(name, {}) for name in names}
    planning.require_programs(draft.trial, draft.bed, draft.request.catalogue, facts)
    return rank_payload.node_fingerprint(facts, plan.slots, **common)


def _code(draft: Draft) -> str:
    """Return the digest of the payload."""
    return (
        str(paths.document(draft.origin, bundle.FINGERPRINT)["code"])
        if draft.origin
        else payloads.content_hash(draft.files)
    )


def _documents(draft: Draft, plan: Plan, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the documents of the bundle before the run begins, by file name."""
    request = draft.request
    about = bundle.describe(
        run=plan.run,
        version=__version__,
        command=request.command,
        reason=request.reason,
        bed=plan.bed,
        twin=request.twin,
        twin_after=request.twin_after,
        budget_s=request.budget_s,
        twin_of=draft.origin.name if draft.origin else "",
    )
    return {
        bundle.TRIAL: draft.trial,
        bundle.PLAN: _shown(plan, draft.bed),
        bundle.FINGERPRINT: _fingerprint(draft, plan, facts),
        bundle.BUNDLE: about,
    }


def _inputs(draft: Draft) -> inputs.Selection:
    """Return the files under ``inputs/`` (the user's and the plugins), the user's other files, and what the copies lack."""
    if draft.origin:
        plan = bundle.load_plan(draft.origin)
        return bundle.read_inputs(draft.origin), plan.inputs_left_out, plan.inputs_redacted
    request = draft.request
    known = (*request.secrets.values(), *draft.bed.vault)
    users, left_out, redacted = inputs.of_run(draft.project, request.inputs, known)
    checks = judge.specs(draft.trial, request.catalogue)
    return {**users, **planning.user_sources(draft.trial, checks, request.catalogue)}, left_out, redacted
