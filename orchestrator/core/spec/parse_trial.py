"""A trial's YAML or trial.json, and options laid over it -> Trial, or one UsageError with every mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ...model import codec
from ...model.errors import UsageError
from ...model.plugin import Catalogue
from ...model.trial import POLICIES, CheckSpec, FaultPlan, Liveness, Recovery, Trial, World
from . import draft, parse_faults, source_positions, values

_KEYS = ("trial", "workload", "params", "world", "faults", "recovery", "checks", "liveness", "seed")
#: The largest values of a world that make sense; a slip of the finger shall not fork a million ranks.
_MOST = {"nodes": 100_000, "ranks_per_node": 256, "master_port": 65535}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_LATER_POLICIES = ("shrink",)
#: Reductions that a workload may name besides the files of ``algorithms/``: the library's own.
LIBRARY = "library"


def parse(text: str, path: str, catalogue: Catalogue, overrides: Iterable[draft.Override] = ()) -> Trial:
    """Raises UsageError. ``path`` names the place in errors; one that ends in .json holds a plain Trial."""
    return build(open_document(text, path), catalogue, overrides)


def open_document(text: str, path: str) -> source_positions.Document:
    """The trial as its author wrote it, not checked yet. Raises UsageError for text that is no YAML or JSON."""
    if path.endswith(".json"):
        return source_positions.Document(path=path, value=_from_json(text, path))
    return source_positions.load(text, path)


def build(
    document: source_positions.Document,
    catalogue: Catalogue,
    overrides: Iterable[draft.Override] = (),
    data_dir: str | None = None,
) -> Trial:
    """The checked Trial of a document in the form of a trial's YAML. Raises UsageError.

    ``data_dir``: where the workload would find its data, which may decide how many steps there are.
    """
    found = draft.lay(document, overrides)
    found.unknown((), found.value, _KEYS, "key")
    params, last_step = _params(found, catalogue, data_dir)
    world = _world(found)
    _fit(found, params, world, catalogue)
    faults = parse_faults.parse(found, catalogue, world, params, last_step)
    trial = {
        "name": _name(found),
        "workload": found.value.get("workload"),
        "params": params or {},
        "world": world,
        "faults": faults,
        "recovery": _recovery(found),
        "checks": _checks(found, catalogue),
        "liveness": _liveness(found),
        "seed": _seed(found),
    }
    found.finish()
    return Trial(**trial)


def document(trial: Trial) -> dict[str, Any]:
    """The same trial in the form of its YAML."""
    return {
        "trial": trial.name,
        "workload": trial.workload,
        "params": dict(trial.params),
        "world": codec.plain(trial.world),
        "faults": [_fault_document(fault) for fault in trial.faults],
        "recovery": {"policy": list(trial.recovery.policy), "max_restarts": trial.recovery.max_restarts},
        "checks": [{check.name: dict(check.params)} if check.params else check.name for check in trial.checks],
        "liveness": codec.plain(trial.liveness),
        "seed": trial.seed,
    }


def _fault_document(fault: FaultPlan) -> dict[str, Any]:
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
            f"{path}: not a trial in the form in which a run keeps it", hint="take trial.json from a run's directory"
        ) from None


def _name(found: draft.Draft) -> str:
    name = found.value.get("trial")
    if name is None:
        found.say(("trial",), "is missing: a trial has a name")
    elif not isinstance(name, str) or not _NAME.fullmatch(name):
        found.say(("trial",), "must be 1 to 60 letters, digits, . _ - and begin with a letter or digit", name)
    return str(name)


def _params(found: draft.Draft, catalogue: Catalogue, data_dir: str | None) -> tuple[dict[str, Any] | None, int | None]:
    """The workload's arguments with its defaults filled in, and its last step where it counts steps; None: mistakes."""
    name = found.value.get("workload")
    plugin = catalogue.workloads.get(name) if isinstance(name, str) else None
    if plugin is None:
        what = "is missing" if name is None else "unknown workload"
        near = values.nearest(str(name), catalogue.workloads)
        found.say(("workload",), f"{what}; {near}", ... if name is None else name, hint="ccbed list workloads")
        return None, None
    before = len(found.problems)
    good = found.build(("params",), plugin.module.Params, found.section("params"), f"parameter of {name}")
    _algorithm(found, good, catalogue)
    if not values.complete(plugin.module.Params, good):
        return None, None
    params = found.made(("params",), plugin.module.Params, good)
    for problem in _own_check(plugin.module, params) if params is not None else ():
        found.own(("params",), problem, good)
    if len(found.problems) > before:
        return None, None
    return codec.plain(params), plugin.module.last_step(params, data_dir)


def _own_check(module: Any, params: Any) -> Iterable[str]:
    check = getattr(module, "check", None)
    return tuple(check(params)) if check else ()


def _fit(found: draft.Draft, params: dict[str, Any] | None, world: World, catalogue: Catalogue) -> None:
    """What the workload says against so many ranks; nothing where its values are wrong already."""
    module: Any = catalogue.workloads[found.value["workload"]].module if params is not None else None
    fits = getattr(module, "fits", None)
    if fits and params is not None:
        for problem in fits(codec.build(module.Params, params), world.size):
            found.own(("params",), problem, params)


def _algorithm(found: draft.Draft, good: dict[str, Any], catalogue: Catalogue) -> None:
    """Algorithms of the user's own folders are loaded here, so that the workload finds them by name."""
    chosen = good.get("algorithm")
    names = [text.partition(":")[0] for text in ((chosen,) if isinstance(chosen, str) else chosen or ())]
    for name in names:
        catalogue.algorithms.get(name)
    known = (*catalogue.algorithms, LIBRARY)
    if isinstance(chosen, str) and names[0] not in known:
        found.say(
            ("params", "algorithm"),
            f"unknown algorithm; known: {', '.join(sorted(known))}",
            chosen,
            hint="ccbed list algorithms",
        )
        del good["algorithm"]  # the rest of the values can still be judged


def _world(found: draft.Draft) -> World:
    good = found.build(("world",), World, found.section("world"), "key")
    found.least(("world",), good, {"nodes": 1, "ranks_per_node": 1, "master_port": 0, "timeout_s": 0.1})
    for name, most in _MOST.items():
        if good.get(name, 0) > most:
            found.say(("world", name), f"must be <= {most}", good.pop(name))
    return World(**good)


def _recovery(found: draft.Draft) -> Recovery:
    body = found.section("recovery")
    found.unknown(("recovery",), body, ("policy", "max_restarts"), "key")
    policy = _policy(found, body.get("policy", "auto"))
    limit = {}
    if "max_restarts" in body:
        try:
            limit = {"max_restarts": values.whole(body["max_restarts"])}
        except ValueError as error:
            found.say(("recovery", "max_restarts"), str(error), body["max_restarts"])
    return Recovery(policy=policy, **limit)


def _policy(found: draft.Draft, given: Any) -> tuple[str, ...]:
    where = ("recovery", "policy")
    known = (*POLICIES, "auto")
    names = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    policy = tuple(str(name).strip() for name in names)
    for name in policy:
        if name in _LATER_POLICIES:
            found.say(where, f"{name} is not available in this version; available: {', '.join(known)}")
        elif name not in known:
            found.say(where, f"unknown policy; {values.nearest(name, known)}", name)
    if not policy or (len(policy) > 1 and {"auto", "none"} & set(policy)) or len(set(policy)) < len(policy):
        found.say(where, "must be auto, none, or a list of spare and restart, each once", given)
    return policy


def _checks(found: draft.Draft, catalogue: Catalogue) -> tuple[CheckSpec, ...]:
    body = found.value.get("checks")
    if body is None:
        return ()
    if not isinstance(body, list):
        found.say(("checks",), "must be a list such as [bit-exact, detected-within: 2s]", body)
        return ()
    made = [_check(found, ("checks", index), item, catalogue) for index, item in enumerate(body)]
    seen: set[str] = set()
    for index, check in enumerate(made):
        if check and check.name in seen:
            found.say(("checks", index), f"{check.name} stands twice")
        seen |= {check.name} if check else set()
    return tuple(check for check in made if check)


def _check(found: draft.Draft, where: source_positions.Path, item: Any, catalogue: Catalogue) -> CheckSpec | None:
    if isinstance(item, dict) and len(item) == 1:
        name, argument = next(iter(item.items()))
    elif isinstance(item, str):
        name, argument = item, None
    else:
        found.say(where, "must be a name, or one name with its argument", item)
        return None
    plugin = catalogue.checkers.get(name)
    if plugin is None:
        found.say(where, f"unknown check; {values.nearest(name, catalogue.checkers)}", name, hint="ccbed list checkers")
        return None
    body = _arguments(plugin.module.Params, argument)
    if body is None:
        found.say(where, f"{name} takes no argument", argument)
        return None
    good, wrong = values.fields(plugin.module.Params, f"argument of {name}", body)
    for field, text in wrong:
        found.say(where, f"{name}: {field}: {text}")
    if not wrong:
        found.made((*where, name), plugin.module.Params, good)
    return CheckSpec(name=name, params=good)


def _arguments(cls: type, argument: Any) -> dict[str, Any] | None:
    """``detected-within: 2s`` -> {"seconds": "2s"}: a lone value is the first parameter; None: there is none."""
    if argument is None:
        return {}
    if isinstance(argument, dict):
        return argument
    names = list(getattr(cls, "__dataclass_fields__", {}))
    return {names[0]: argument} if names else None


def _liveness(found: draft.Draft) -> Liveness:
    good = found.build(("liveness",), Liveness, found.section("liveness"), "key")
    found.least(("liveness",), good, dict.fromkeys(Liveness.__dataclass_fields__, 0.001))
    return Liveness(**good)


def _seed(found: draft.Draft) -> int:
    given = found.value.get("seed", Trial.__dataclass_fields__["seed"].default)
    try:
        seed = values.whole(given)
        if seed >= 2**63:
            raise ValueError("must be below 2**63")
    except ValueError as error:
        found.say(("seed",), str(error), given)
        return 0
    return seed
