"""Parse a trial: YAML or trial.json, with the options applied -> Trial, or one UsageError with every mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.errors import UsageError
from ...model.plugin import Catalogue
from ...model.trial import (
    ACCEPTABLE,
    NOTHING,
    POLICIES,
    REPLACE,
    RUNGS,
    SCRIPT,
    SCRIPT_STALLED_S,
    SHRINK,
    THEIRS,
    CheckSpec,
    FaultPlan,
    Liveness,
    Recovery,
    Trial,
    World,
)
from . import parse_faults, source_positions, trial_draft, written_values

_KEYS = (
    "trial",
    "workload",
    "params",
    "world",
    "faults",
    "recovery",
    "checks",
    "liveness",
    "seed",
    "require",
    "accept",
)
#: The largest values of a world: a typing error must not fork a million ranks.
_MAXIMA = {"nodes": 100_000, "ranks_per_node": 256, "master_port": 65535}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
#: The reduction of the communication library, which a workload may name besides the files of ``algorithms/``.
LIBRARY = "library"


def parse(text: str, path: str, catalogue: Catalogue, overrides: Iterable[trial_draft.Override] = ()) -> Trial:
    """Parse ``text``. ``path`` names the file in errors; a path that ends in .json holds a plain Trial. Raises UsageError."""
    return build(open_document(text, path), catalogue, overrides)


def open_document(text: str, path: str) -> source_positions.Document:
    """The trial as its author wrote it, not yet checked. Raises UsageError for text that is neither YAML nor JSON."""
    if path.endswith(".json"):
        return source_positions.Document(path=path, content=_from_json(text, path))
    return source_positions.load(text, path)


def build(
    document: source_positions.Document,
    catalogue: Catalogue,
    overrides: Iterable[trial_draft.Override] = (),
    data_dir: str | None = None,
) -> Trial:
    """The checked Trial of a document in the form of a trial's YAML. Raises UsageError.

    ``data_dir``: the workload's data, which may determine the number of steps.
    """
    draft = trial_draft.apply_overrides(document, overrides)
    draft.reject_unknown_keys((), draft.content, _KEYS, "key")
    params, last_step = _params(draft, catalogue, data_dir)
    recovery = _recovery(draft, has_launcher=bool((params or {}).get("launcher")))
    world = _world(draft, recovery)
    if params and params.get("launcher") and world.ranks_per_node > 1:  # one launcher on each node starts them all
        params, world = {**params, "nproc": world.ranks_per_node}, replace(world, ranks_per_node=1)
    _check_world_size(draft, params, world, catalogue)
    faults = parse_faults.parse(draft, catalogue, world, params, last_step)
    checks = _checks(draft, catalogue)
    require = _require(draft, checks)
    trial = {
        "name": _name(draft),
        "workload": draft.content.get("workload"),
        "params": params or {},
        "world": world,
        "faults": faults,
        "recovery": recovery,
        "checks": checks,
        "liveness": _liveness(draft),
        "seed": _seed(draft),
        "require": require,
        "accept": _accept(draft, require),
    }
    draft.raise_problems()
    return Trial(**trial)


def document(trial: Trial) -> dict[str, Any]:
    """The trial in the form of its YAML."""
    return {
        "trial": trial.name,
        "workload": trial.workload,
        "params": dict(trial.params),
        "world": codec.plain(trial.world),
        "faults": [_fault_document(fault) for fault in trial.faults],
        "recovery": _recovery_document(trial.recovery),
        "checks": [{check.name: dict(check.params)} if check.params else check.name for check in trial.checks],
        "liveness": codec.plain(trial.liveness),
        "seed": trial.seed,
        "require": trial.require,
        "accept": list(trial.accept),
    }


def _recovery_document(recovery: Recovery) -> object:
    grow = {} if recovery.grow_after_s is None else {"grow_after": recovery.grow_after_s}
    wait = {} if recovery.replace_wait_s is None else {"replace_wait": recovery.replace_wait_s}
    return {"policy": list(recovery.policy), "max_restarts": recovery.max_restarts, **grow, **wait}


def _fault_document(fault: FaultPlan) -> object:
    at = {key.removesuffix("_s"): value for key, value in codec.plain(fault.at).items()}
    if fault.at.after_s is not None or fault.at.on is not None:
        at.pop("phase", None)
    return {fault.fault: {"node": fault.node, "at": at, **fault.params}}


def _from_json(text: str, path: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
        return document(codec.build(Trial, data)) if isinstance(data, dict) and "name" in data else data
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid JSON: {error}", hint="take trial.json from a run's directory") from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path}: not a trial in the form of a run's trial.json", hint="take trial.json from a run's directory"
        ) from None


def _name(draft: trial_draft.Draft) -> str:
    name = draft.content.get("trial")
    if name is None:
        draft.add_problem(("trial",), "is missing: a trial has a name")
    elif not isinstance(name, str) or not _NAME.fullmatch(name):
        draft.add_problem(("trial",), "must be 1 to 60 letters, digits, . _ - and begin with a letter or digit", name)
    return str(name)


def _params(
    draft: trial_draft.Draft, catalogue: Catalogue, data_dir: str | None
) -> tuple[dict[str, Any] | None, int | None]:
    """The workload's arguments with defaults, and its last step if it counts steps; None where there are mistakes."""
    name = draft.content.get("workload")
    plugin = catalogue.workloads.get(name) if isinstance(name, str) else None
    if plugin is None:
        problem = "is missing" if name is None else "unknown workload"
        hint = written_values.nearest(str(name), catalogue.workloads)
        draft.add_problem(
            ("workload",), f"{problem}; {hint}", ... if name is None else name, hint="ccbed list workloads"
        )
        return None, None
    problem_count = len(draft.problems)
    arguments = draft.convert_arguments(
        ("params",), plugin.module.Params, draft.section("params"), f"parameter of {name}"
    )
    _check_algorithms(draft, arguments, catalogue)
    if not written_values.has_required(plugin.module.Params, arguments):
        return None, None
    params = draft.construct(("params",), plugin.module.Params, arguments)
    for problem in _workload_problems(plugin.module, params) if params is not None else ():
        draft.add_plugin_problem(("params",), problem, arguments)
    if len(draft.problems) > problem_count:
        return None, None
    return codec.plain(params), plugin.module.last_step(params, data_dir)


def _workload_problems(module: Any, params: Any) -> Iterable[str]:
    check = getattr(module, "check", None)
    return tuple(check(params)) if check else ()


def _check_world_size(
    draft: trial_draft.Draft, params: dict[str, Any] | None, world: World, catalogue: Catalogue
) -> None:
    """Record why the workload cannot run on as many ranks as an attempt may have; skipped if its values are wrong already."""
    module: Any = catalogue.workloads[draft.content["workload"]].module if params is not None else None
    if module and world.can_shrink and not getattr(module, "RESIZES", False):
        name = draft.content["workload"]
        can = ", ".join(
            sorted(w for w in catalogue.workloads if getattr(catalogue.workloads[w].module, "RESIZES", False))
        )
        draft.add_problem(("workload",), f"cannot resume with another number of ranks; these can: {can}", name)
        return
    fits = getattr(module, "fits", None)
    if fits and params is not None:
        sizes = (nodes * world.ranks_per_node for nodes in range(world.least_nodes, world.nodes + 1))
        problems = (problem for size in sizes for problem in fits(codec.build(module.Params, params), size))
        for problem in dict.fromkeys(problems):
            draft.add_plugin_problem(("params",), problem, params)


def _check_algorithms(draft: trial_draft.Draft, arguments: dict[str, Any], catalogue: Catalogue) -> None:
    """Load the algorithms of the user's own folders, so that the workload finds them by name; reject unknown names."""
    chosen = arguments.get("algorithm")
    names = [text.partition(":")[0] for text in ((chosen,) if isinstance(chosen, str) else chosen or ())]
    for name in names:
        catalogue.algorithms.get(name)
    known = (*catalogue.algorithms, LIBRARY)
    if isinstance(chosen, str) and names[0] not in known:
        draft.add_problem(
            ("params", "algorithm"),
            f"unknown algorithm; known: {', '.join(sorted(known))}",
            chosen,
            hint="ccbed list algorithms",
        )
        del arguments["algorithm"]  # the other values can still be checked


def _world(draft: trial_draft.Draft, recovery: Recovery) -> World:
    """The world; a range of nodes, such as 2:4, is the fewest and the most. A gang that may shrink needs one node at least."""
    body = draft.section("world")
    if isinstance(body.get("nodes"), str) and ":" in body["nodes"]:
        least, _, most = body["nodes"].partition(":")
        body = {**body, "nodes": most, "min_nodes": least}
    arguments = draft.convert_arguments(("world",), World, body, "key")
    minimums = {"nodes": 1, "min_nodes": 1, "ranks_per_node": 1, "master_port": 0, "timeout_s": 0.1}
    draft.enforce_minimums(("world",), arguments, minimums)
    for name, maximum in _MAXIMA.items():
        if arguments.get(name, 0) > maximum:
            draft.add_problem(("world", name), f"must be <= {maximum}", arguments.pop(name))
    _check_range(draft, arguments, recovery)
    if SHRINK in recovery.policy:
        arguments.setdefault("min_nodes", 1)
    return World(**arguments)


def _check_range(draft: trial_draft.Draft, arguments: dict[str, Any], recovery: Recovery) -> None:
    least, most = arguments.get("min_nodes"), arguments.get("nodes", World().nodes)
    if least is None:
        return
    if least > most:
        draft.add_problem(("world", "nodes"), f"must be at least min_nodes, {least}", arguments.pop("nodes", most))
    elif least < most and THEIRS in recovery.policy:
        draft.add_problem(
            ("world", "nodes"), "a range needs ccbed's own recovery; the recovery is theirs", f"{least}:{most}"
        )


def _recovery(draft: trial_draft.Draft, *, has_launcher: bool) -> Recovery:
    """A job's own launcher recovers by itself, unless the trial has another policy."""
    body = draft.section("recovery")
    draft.reject_unknown_keys(("recovery",), body, ("policy", "max_restarts", "grow_after", "replace_wait"), "key")
    policy = _policy(draft, body.get("policy", THEIRS if has_launcher else "auto"))
    if policy == (THEIRS,) and not has_launcher:
        draft.add_problem(("recovery", "policy"), "theirs needs a launcher that recovers: --launcher torchrun", THEIRS)
    limits: dict[str, Any] = {}
    for key, field, convert in (
        ("max_restarts", "max_restarts", written_values.whole),
        ("grow_after", "grow_after_s", written_values.seconds),
        ("replace_wait", "replace_wait_s", written_values.seconds),
    ):
        try:
            limits |= {field: convert(body[key])} if body.get(key) is not None else {}
        except ValueError as error:
            draft.add_problem(("recovery", key), str(error), body[key])
    if limits.get("replace_wait_s") and REPLACE not in policy:
        draft.add_problem(("recovery", "replace_wait"), "needs the policy replace", body["replace_wait"])
    return Recovery(policy=policy, **limits)


def _policy(draft: trial_draft.Draft, setting: Any) -> tuple[str, ...]:
    where = ("recovery", "policy")
    known = (*POLICIES, "auto", THEIRS)
    names = setting.split(",") if isinstance(setting, str) else setting if isinstance(setting, list) else [setting]
    policy = tuple(str(name).strip() for name in names)
    for name in policy:
        if name not in known:
            draft.add_problem(where, f"unknown policy; {written_values.nearest(name, known)}", name)
    if not policy or (len(policy) > 1 and {"auto", "none", THEIRS} & set(policy)) or len(set(policy)) < len(policy):
        draft.add_problem(
            where,
            "must be auto, none, theirs, or a list of spare, restart, replace and shrink without repetition",
            setting,
        )
    return policy


def _checks(draft: trial_draft.Draft, catalogue: Catalogue) -> tuple[CheckSpec, ...]:
    body = draft.content.get("checks")
    if body is None:
        return ()
    if not isinstance(body, list):
        draft.add_problem(("checks",), "must be a list such as [bit-exact, detected-within: 2s]", body)
        return ()
    checks = [_check(draft, ("checks", index), item, catalogue) for index, item in enumerate(body)]
    names: set[str] = set()
    for index, check in enumerate(checks):
        if check and check.name in names:
            draft.add_problem(("checks", index), f"{check.name} appears twice")
        names |= {check.name} if check else set()
    return tuple(check for check in checks if check)


def _check(draft: trial_draft.Draft, where: source_positions.Path, item: Any, catalogue: Catalogue) -> CheckSpec | None:
    if isinstance(item, dict) and len(item) == 1:
        name, argument = next(iter(item.items()))
    elif isinstance(item, str):
        name, argument = item, None
    else:
        draft.add_problem(where, "must be a name, or a mapping from one name to its argument", item)
        return None
    plugin = catalogue.checkers.get(name)
    if plugin is None:
        draft.add_problem(
            where,
            f"unknown check; {written_values.nearest(name, catalogue.checkers)}",
            name,
            hint="ccbed list checkers",
        )
        return None
    body = _arguments(plugin.module.Params, argument)
    if body is None:
        draft.add_problem(where, f"{name} takes no argument", argument)
        return None
    arguments, problems = written_values.convert_fields(plugin.module.Params, f"argument of {name}", body)
    for field, text in problems:
        draft.add_problem(where, f"{name}: {field}: {text}")
    if not problems:
        draft.construct((*where, name), plugin.module.Params, arguments)
    return CheckSpec(name=name, params=arguments)


def _require(draft: trial_draft.Draft, checks: Iterable[CheckSpec]) -> str:
    """The rung that the trial must reach: a script resumes whole, unless its checks compare bits; other workloads are exact."""
    compares = {"bit-exact", "replay-equal"} & {check.name for check in checks}
    default = "whole" if draft.content.get("workload") == SCRIPT and not compares else "exact"
    rung = draft.content.get("require", default)
    if rung not in RUNGS:
        draft.add_problem(("require",), f"must be {', '.join(RUNGS[:-1])} or {RUNGS[-1]}", rung)
    return str(rung)


def _accept(draft: trial_draft.Draft, require: str) -> tuple[str, ...]:
    """The parts that may be lost: by default the random states of a script that need not be exact."""
    is_default = draft.content.get("workload") == SCRIPT and require != RUNGS[-1]
    parts, unknown = accepted_parts(draft.content.get("accept", ["rng"] if is_default else []))
    for name in unknown:
        draft.add_problem(("accept",), not_acceptable(name), name)
    return parts


def not_acceptable(name: str) -> str:
    """Return why a trial cannot accept that this part is lost."""
    if name == NOTHING:
        return f"{NOTHING} stands alone: it demands every part"
    return f"unknown part; {written_values.nearest(name, (*ACCEPTABLE, NOTHING))}"


def accepted_parts(setting: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the parts of ``ACCEPTABLE`` in a list or a text with commas, the names that are none of them)."""
    items = setting.split(",") if isinstance(setting, str) else setting if isinstance(setting, list) else [setting]
    names = [str(item).strip() or "nothing" for item in items]
    if names == [NOTHING]:
        return (), ()
    return tuple(part for part in ACCEPTABLE if part in names), tuple(name for name in names if name not in ACCEPTABLE)


def _arguments(cls: type, argument: Any) -> dict[str, Any] | None:
    """``detected-within: 2s`` -> {"seconds": "2s"}: a bare value is the first parameter; None if there is no parameter."""
    if argument is None:
        return {}
    if isinstance(argument, dict):
        return argument
    names = list(getattr(cls, "__dataclass_fields__", {}))
    return {names[0]: argument} if names else None


def _liveness(draft: trial_draft.Draft) -> Liveness:
    arguments = draft.convert_arguments(("liveness",), Liveness, draft.section("liveness"), "key")
    draft.enforce_minimums(("liveness",), arguments, dict.fromkeys(Liveness.__dataclass_fields__, 0.001))
    stalled_s = arguments.get("stalled_s", SCRIPT_STALLED_S)
    is_recorded = (
        draft.document.path.endswith(".json") and stalled_s == Liveness().stalled_s
    )  # a run of a trial without it
    if draft.content.get("workload") == SCRIPT and stalled_s < SCRIPT_STALLED_S and not is_recorded:
        problem = (
            f"of a script must be >= {SCRIPT_STALLED_S:g}; a shorter one, also for ranks that work, is params.timeout_s"
        )
        draft.add_problem(("liveness", "stalled_s"), problem, stalled_s)
    return Liveness(**arguments)


def _seed(draft: trial_draft.Draft) -> int:
    setting = draft.content.get("seed", Trial.__dataclass_fields__["seed"].default)
    try:
        seed = written_values.whole(setting)
        if seed >= 2**63:
            raise ValueError("must be below 2**63")
    except ValueError as error:
        draft.add_problem(("seed",), str(error), setting)
        return 0
    return seed
