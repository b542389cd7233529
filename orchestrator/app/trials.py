"""Read a trial: a built-in one, a file, a value, or a script; and what requests change in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.spec import parse_trial, redact, source_positions, trial_draft, written_values
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import InfrastructureError, UsageError
from ..model.frozen import dataclass, replace
from ..model.plugin import Catalogue
from ..model.trial import SCRIPT, Trial
from ..store import bundle, paths, shipped
from .observers import Screen
from .places import short_path
from .requests import FaultRequest, TrialRef

#: The check that compares a run with its twin.
TWIN_CHECK = "bit-exact"
#: Before the name of a shipped example script.
EXAMPLE = "example:"
_SUFFIXES = (".py", ".yml", ".yaml", ".json")
#: Bytes of a trial or script.
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trial as the user gives it. ``label``: its name in errors; ``inputs``: the user's files for the bundle.

    ``args``: the arguments after ``--``, where they replace those of a trial's script.
    ``secret_names``: options and variables that were redacted when this trial was recorded.
    """

    document: source_positions.Document
    label: str
    inputs: Mapping[str, bytes]
    args: tuple[str, ...] = ()
    secret_names: tuple[str, ...] = ()

    @property
    def trial_name(self) -> str:
        """Its own name, which may be invalid."""
        return str(self.document.content.get("trial")) if isinstance(self.document.content, dict) else ""

    @property
    def workload(self) -> str:
        return str(self.document.content.get("workload")) if isinstance(self.document.content, dict) else ""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters that the trial itself sets."""
        params = self.document.content.get("params") if isinstance(self.document.content, dict) else None
        return params if isinstance(params, dict) else {}

    @property
    def is_script(self) -> bool:
        return self.workload == SCRIPT

    @property
    def is_module(self) -> bool:
        """Return whether it is a module that the command line names."""
        return not self.inputs and bool(self.params.get("module"))


def opened(ref: TrialRef, catalogue: Catalogue) -> Source:
    """Read the trial that a request means. Raises UsageError."""
    if ref.content is not None:
        return from_mapping(ref.content)
    if ref.module:
        return open_module(ref.module, ref.args)
    return open_source(ref.name, ref.args, catalogue)


def open_source(name: str, args: Sequence[str], catalogue: Catalogue) -> Source:
    """Read a trial. Raises UsageError for a name that is neither a built-in trial nor a readable file."""
    if name in catalogue.trials:
        return _yaml(Path(catalogue.trials[name]), f"{name}.yml", name)
    if name.startswith(EXAMPLE):
        path = _example(name.removeprefix(EXAMPLE))
        return _script(path, args, root=str(path.parent))
    path = Path(name)
    if path.suffix == ".py":
        return _script(path, args)
    if path.suffix in _SUFFIXES:
        source = _yaml(path, name)
        return replace(source, args=tuple(args), secret_names=_recorded_secrets(source, path.parent))
    near = written_values.nearest(name, catalogue.trials)
    raise UsageError(f"no trial {name}; {near}", hint="ccbed list trials, or give FILE.yml or FILE.py")


def from_mapping(content: Mapping[str, Any]) -> Source:
    """The trial that a program gives as a value, with the keys of a trial's file. Raises UsageError for what is no JSON."""
    try:
        text = json.dumps(content, indent=1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"trial: {error}", hint="a trial is a dict of JSON values, as in a trial's file") from None
    document = parse_trial.open_document(text, "trial.json")
    return Source(document=document, label=document.path, inputs={document.path: text.encode()})


def _example(name: str) -> Path:
    examples = shipped.examples()
    if name not in examples:
        raise UsageError(f"no example {name}; {written_values.nearest(name, examples)}", hint="ccbed list examples")
    return examples[name]


def _recorded_secrets(source: Source, directory: Path) -> tuple[str, ...]:
    """Return the options that were redacted in the trial, and the secret names of the plan beside it."""
    try:
        plan = paths.document(directory, bundle.PLAN)
    except (paths.TornBundleError, OSError):
        plan = {}
    names = plan.get("secret_names") if isinstance(plan, dict) else ()
    listed = names if isinstance(names, list) else ()
    return tuple(dict.fromkeys((*redact.redacted_options(source.params), *map(str, listed))))


def name_among(words: Sequence[str], catalogue: Catalogue) -> str | None:
    """Return the trial among arguments that no option of `run` takes; some are options of the workload and their values."""
    bare = [word for word in words if not word.startswith("-")]
    named = (
        word for word in bare if word in catalogue.trials or word.startswith(EXAMPLE) or Path(word).suffix in _SUFFIXES
    )
    return next(named, bare[0] if bare else None)


def implied_checks(document: source_positions.Document, fail_node: Sequence[str]) -> list[trial_draft.Override]:
    """Require that a node killed by --fail-node is detected in time, unless the trial has that check."""
    checks = document.content.get("checks") or ()
    if not fail_node or any("detected-within" in check for check in checks if isinstance(check, str | dict)):
        return []
    return [
        trial_draft.Override(path=("checks",), content={"detected-within": "2s"}, source="--fail-node", append=True)
    ]


def script_path(source: Source) -> str:
    """The script that the trial names, a shipped example by its path. Raises UsageError for an unknown example."""
    file = str(source.params.get("file") or "")
    return str(_example(file.removeprefix(EXAMPLE))) if file.startswith(EXAMPLE) else file


def absolute_paths(source: Source, workload_values: Mapping[str, str]) -> list[trial_draft.Override]:
    """Resolve the paths of a script against the current directory, in which it runs unless the trial names another."""
    given = {**source.params, **workload_values}
    if not source.is_script or not (given.get("file") or given.get("module")):
        return []
    paths_by_name = {"file": script_path(source), "root": given.get("root"), "cwd": given.get("cwd") or "."}
    return [
        trial_draft.Override(
            path=("params", name),
            content=os.path.abspath(path),  # noqa: PTH100 a link keeps its name, as with python FILE.py
            source=f"--{name}",
        )
        for name, path in paths_by_name.items()
        if isinstance(path, str) and path and not (Path(path).is_absolute() and path == given.get(name))
    ]


def is_example(source: Source) -> bool:
    """Tell whether the script is one that ccbed ships."""
    return Path(script_path(source)) in shipped.examples().values()


def twin_check(source: Source, *, chosen: bool) -> list[trial_draft.Override]:
    """Compare a script with the twin that --reference asks for."""
    checks = source.document.content.get("checks") or ()
    if not (chosen and source.is_script) or TWIN_CHECK in checks:
        return []
    return [trial_draft.Override(path=("checks",), content=TWIN_CHECK, source="--reference", append=True)]


def require_nodes(source: Source, trial: Trial, bed: BedSpec, catalogue: Catalogue) -> None:
    """Raises UsageError where the bed has too few nodes; the hint suggests fewer only where the trial allows that."""
    count = sum(node.role == "node" for node in bed.nodes)
    if trial.world.nodes <= count:
        return
    module: Any = catalogue.workloads[trial.workload].module
    fewer = replace(trial.world, nodes=count)
    params = codec.build(module.Params, dict(trial.params))
    unfit = [*module.fits(params, fewer.size)] if hasattr(module, "fits") else []
    unplaced = [fault for fault in trial.faults if isinstance(fault.node, int) and fault.node >= count]
    where = short_path(bed.inventory)
    more = f"raise ccbed_nodes in {where}, then: ccbed up {where}"
    less = [] if unfit or unplaced or not count else [f"ccbed run {source.document.name} --nodes {count}"]
    raise UsageError(
        f"trial {trial.name} needs {trial.world.nodes} nodes; bed {bed.name} has {count} (spares are never counted)",
        hint="\n".join([*less, f"or {more}" if less else more]),
    )


def faults(name: str, request: FaultRequest) -> list[trial_draft.Override]:
    """Return a crash-node per node. ``name``: the trial as the user names it. Triggers: none, one for all of them, or one per node."""
    nodes, at = request.fail_node, request.at
    if at and not nodes:
        raise UsageError("--at needs --fail-node", hint=f"ccbed run {name} --fail-node 2 --at {at[0]}")
    if len(at) not in (0, 1, len(nodes)):
        raise UsageError(
            f"--at: give it once for all, or once per --fail-node (got {len(at)} for {len(nodes)})",
            hint=f"ccbed run {name} --fail-node 1 --at step=20 --fail-node 2 --at step=40",
        )
    triggers = [{"at": at[index % len(at)]} if at else {} for index in range(len(nodes))]
    return [
        trial_draft.Override(
            path=("faults",),
            content={"crash-node": {"node": node, **trigger}},
            source=f"--fail-node {node}",
            append=True,
        )
        for node, trigger in zip(nodes, triggers, strict=True)
    ]


def notes(trial: Trial, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the notes of the workload about its parameters."""
    module: Any = catalogue.workloads[trial.workload].module
    return tuple(module.notes(codec.build(module.Params, dict(trial.params)))) if hasattr(module, "notes") else ()


def without_missing_libraries(screen: Screen, trial: Trial, bed: BedSpec, catalogue: Catalogue) -> Trial:
    """Remove the algorithms whose library this machine lacks. Raises InfrastructureError where none would be left.

    Only for process nodes, which use this machine's libraries; other nodes report a missing library themselves.
    """
    lacking = getattr(catalogue.workloads[trial.workload].module, "lacking", None)
    algorithms, reason = lacking(trial.params) if lacking and bed.shares_file_system else ((), "")
    return _without(screen, trial, algorithms, reason) if algorithms else trial


def _without(screen: Screen, trial: Trial, skipped: tuple[str, ...], reason: str) -> Trial:
    chosen = trial.params.get("algorithm") or ()
    rest = [] if isinstance(chosen, str) else [name for name in chosen if name not in skipped]
    if not rest:
        raise InfrastructureError(f"{', '.join(skipped)}: {reason}")
    screen.warn(f"{', '.join(skipped)} skipped: {reason}")
    return replace(trial, params={**trial.params, "algorithm": rest})


def _yaml(path: Path, label: str, user_name: str = "") -> Source:
    content = _read(path)
    text = content.decode(errors="replace")
    document = replace(parse_trial.open_document(text, label), user_name=user_name)
    return Source(document=document, label=label, inputs={path.name: content})


def open_module(name: str, args: Sequence[str]) -> Source:
    """The trial of ``-m MODULE``. Raises UsageError for a name that no module can have."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"-m: must be the name of a module (got {name})", hint="ccbed run -m package.train")
    return Source(document=_script_document(f"-m {name}", name, {"module": name}, args), label=f"-m {name}", inputs={})


def _script(path: Path, args: Sequence[str], **params: str) -> Source:
    source = _read(path)
    file = os.path.abspath(path)  # noqa: PTH100 a link keeps its name, as with python FILE.py
    document = _script_document(str(path), path.stem, {"file": file, **params}, args)
    return Source(document=document, label=str(path), inputs={path.name: source})


def _script_document(
    label: str, name: str, program: Mapping[str, str], args: Sequence[str]
) -> source_positions.Document:
    content = {
        "trial": _trial_name(name),
        "workload": SCRIPT,
        "params": {**program, "args": list(args), "cwd": str(Path.cwd())},
        "recovery": {"policy": "none"},
    }
    return source_positions.Document(path=label, content=content)


def _trial_name(stem: str) -> str:
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem)
    return name.strip("._-")[:60] or SCRIPT


def _read(path: Path) -> bytes:
    try:
        return paths.read(path, _LARGEST)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint="ccbed list trials") from None
