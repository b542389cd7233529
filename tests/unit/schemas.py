"""JSON Schemas of trials and of inventory variables, for editors: built from the parser's own tables and from plugins."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

from orchestrator.core.inventory import variables
from orchestrator.core.spec import parameter_docs, parse_faults, parse_trial, written_values
from orchestrator.model.act import SAFETY_ORDER
from orchestrator.model.plugin import Catalogue
from orchestrator.model.trial import ACCEPTABLE, NOTHING, PHASES, POLICIES, RUNGS, THEIRS, Liveness, Trial, World
from orchestrator.nightly import parse_suite, selector
from orchestrator.slurm import inventory_variables as slurm_options

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
WHOLE: Schema = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[-+]?\d+\s*$"}]}
NUMBER: Schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$"}]}
TIME: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": written_values._DURATION.pattern}]
}
SIZE: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": written_values._SIZE.pattern}]
}
TRUTH: Schema = {"anyOf": [{"type": "boolean"}, {"enum": [*written_values._TRUE, *written_values._FALSE]}]}
TEXT: Schema = {"type": ["string", "number", "boolean"]}
KINDS = {"whole": WHOLE, "number": NUMBER, "time": TIME, "truth": TRUTH, "text": TEXT}


def known(names: typing.Iterable[str], also: str = "") -> Schema:
    """A name of a list that editors complete; plugins of users have others."""
    return {"anyOf": [{"enum": sorted(names)}, {"type": "string", **({"pattern": also} if also else {})}]}


# --- trials -------------------------------------------------------------------------------------------------------------


def trial(catalogue: Catalogue) -> Schema:
    """The form of a trial's YAML."""
    workloads = {name: parameters(plugin.module.Params) for name, plugin in sorted(catalogue.workloads.items())}
    properties = {
        "trial": {
            "type": "string",
            "pattern": f"^{parse_trial._NAME.pattern}$",
            "description": "The name of the trial.",
        },
        "workload": {**known(workloads), "description": "What the ranks do: ccbed list workloads."},
        "params": {"type": ["object", "null"], "description": "Parameters of the workload."},
        "world": world(),
        "faults": faults(catalogue),
        "recovery": recovery(),
        "checks": checks(catalogue),
        "liveness": parameters(Liveness),
        "seed": {**WHOLE, "default": Trial.__dataclass_fields__["seed"].default},
        "require": {"enum": [*RUNGS], "description": "The rung that a training must reach to pass."},
        "accept": accepted(),
    }
    assert properties.keys() == set(parse_trial._KEYS)
    chosen = [
        {"if": {"properties": {"workload": {"const": name}}}, "then": {"properties": {"params": schema}}}
        for name, schema in workloads.items()
    ]
    return {
        "$schema": DRAFT, "title": "A trial of ccbed", "type": "object", "properties": properties,
        "required": ["trial", "workload"], "additionalProperties": False, "allOf": chosen, "definitions": KINDS,
    }  # fmt: skip


def accepted() -> Schema:
    """A list of parts, or the same as a text with commas."""
    part = rf"\s*({'|'.join(ACCEPTABLE)})\s*"
    texts = {"type": "string", "pattern": rf"^({part}(,{part})*|\s*{NOTHING}\s*)$"}
    items = {"type": "array", "items": {"enum": [*ACCEPTABLE, NOTHING]}}
    return {"anyOf": [items, texts], "description": "Parts of the state that a training may lose."}


def parameters(cls: Any, more: Mapping[str, Schema] | None = None) -> Schema:
    """The fields of a dataclass. The parser takes dashes for underscores, and ``for`` for ``for_s``."""
    hints, meanings = typing.get_type_hints(cls), parameter_docs.read_meanings(cls)
    properties: dict[str, Schema] = {**(more or {})}
    aliases: dict[str, Schema] = {}
    for field in dataclasses.fields(cls):
        schema = _of_type(hints[field.name], is_duration=written_values.is_duration(field.name))
        alias = next(
            ({"$ref": f"#/definitions/{name}"} for name, kind in KINDS.items() if kind == schema), dict(schema)
        )
        if field.name in meanings:
            schema["description"] = meanings[field.name]
        if field.default is not dataclasses.MISSING and isinstance(field.default, str | int | float | bool):
            schema["default"] = field.default
        properties[field.name] = schema
        stem = field.name.removesuffix("_s")
        short = "([-_]s)?" if stem != field.name and stem not in hints else ""
        if short or "_" in field.name:
            aliases[f"^{re.sub('_', '[-_]', stem if short else field.name)}{short}$"] = alias
    patterns = {"patternProperties": aliases} if aliases else {}
    return {"type": ["object", "null"], "properties": properties, **patterns, "additionalProperties": False}


def _of_type(hint: Any, is_duration: bool) -> Schema:
    origin = typing.get_origin(hint)
    if written_values._is_union(hint):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        none = [{"enum": [None, "none"]}] if type(None) in typing.get_args(hint) else []
        return {"anyOf": [*(_of_type(option, is_duration) for option in options), *none]}
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin in (tuple, list):
        item = _of_type((typing.get_args(hint) or (str,))[0], is_duration=False)
        return {"anyOf": [{"type": "array", "items": item}, {"type": ["string", "number", "boolean"]}]}
    simple = {bool: TRUTH, int: WHOLE, float: TIME if is_duration else NUMBER, str: TEXT}
    return dict(simple.get(hint, {}))


def faults(catalogue: Catalogue) -> Schema:
    node = {
        "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
        "description": "A group rank, or a node's name.",
    }
    bodies = {
        name: {**parameters(plugin.module.Params, {"node": node, "at": trigger()}), "description": f"{plugin.summary}."}
        for name, plugin in sorted(catalogue.faults.items())
    }
    fault = {"type": "object", "properties": bodies, "minProperties": 1, "maxProperties": 1}
    return {"type": ["array", "null"], "items": {"anyOf": [fault, known(bodies)]}}


def trigger() -> Schema:
    """When a fault acts: ``10s``, ``step=20,phase=allreduce``, or a mapping."""
    properties = {
        "step": WHOLE, "phase": {"enum": sorted({*PHASES, *parse_faults.LIFE_PHASES})}, "after": TIME,
        "on": {"enum": sorted(parse_faults.ON_EVENTS)}, "nth": WHOLE, "epoch": WHOLE,
        "after-save": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
    }  # fmt: skip
    assert properties.keys() == set(parse_faults._AT_KEYS)
    mapping = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [mapping, {"type": ["string", "number", "null"]}]}


def world() -> Schema:
    """A range of nodes such as ``2:4`` is the fewest and the most."""
    schema = parameters(World)
    schema["properties"]["nodes"]["anyOf"] = [WHOLE, {"type": "string", "pattern": r"^\s*\d+\s*:\s*\d+\s*$"}]
    for name in ("type", "pattern"):
        schema["properties"]["nodes"].pop(name, None)
    return schema


def recovery() -> Schema:
    policies = [*POLICIES, "auto", THEIRS]
    policy = {
        "anyOf": [
            {"enum": policies},
            {"type": "array", "items": {"enum": policies}},
            {"type": "string", "pattern": ","},
        ]
    }
    return {
        "type": ["object", "null"],
        "properties": {"policy": policy, "max_restarts": WHOLE, "grow_after": TIME, "replace_wait": TIME},
        "additionalProperties": False,
    }


def checks(catalogue: Catalogue) -> Schema:
    """A name, or a name with its argument: ``detected-within: 2s`` is that of its first parameter."""
    bodies = {}
    for name, plugin in sorted(catalogue.checkers.items()):
        first = next(iter(dataclasses.fields(plugin.module.Params)), None)
        bare = [{"type": ["string", "number", "boolean", "array"]}] if first else []
        bodies[name] = {"anyOf": [parameters(plugin.module.Params), *bare], "description": f"{plugin.summary}."}
    named = {"type": "object", "properties": bodies, "minProperties": 1, "maxProperties": 1}
    return {"type": ["array", "null"], "items": {"anyOf": [known(bodies), named]}}


# --- suites -------------------------------------------------------------------------------------------------------------


def suite(catalogue: Catalogue) -> Schema:
    """The form of a suite's YAML."""
    needs = {"enum": sorted(selector.REQUIREMENTS)}
    named = {"needs": {"anyOf": [{"type": "array", "items": needs}, {"type": "string"}]}, "world": world()}
    named["world"]["properties"]["nodes"]["anyOf"].append({"const": parse_suite.ALL})
    precision = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*([\d.]+\s*%?\s*)?$"}]}
    common = {**named, "precision": precision}
    defect = {**parameters(parse_suite.KnownDefect), "type": "object", "required": ["nodes"]}
    plain = {"type": ["string", "number", "boolean"]}
    rule = _with(parse_suite.Rule, {key: {"anyOf": [plain, defect]} for key in ("set_aside", "xfail")})
    entry = _with(parse_suite.Entry, {
        **common, "trial": known(catalogue.trials),
        "matrix": {"type": ["object", "null"], "additionalProperties": {"type": "array", "minItems": 1}},
        "params": {"type": ["object", "null"]}, "faults": faults(catalogue),
        "metrics": {"type": ["object", "null"], "additionalProperties": rule},
    })  # fmt: skip
    item = {"anyOf": [{"type": "string"}, {**entry, "type": "object", "required": ["trial"]}]}
    head = _with(parse_suite.Head, {
        "suite": {"type": "string", "pattern": f"^{parse_suite.NAME.pattern}$"}, "defaults": _with(parse_suite.Defaults, common),
        "trials": {"type": "array", "minItems": 1, "items": item},
    })  # fmt: skip
    return {
        "$schema": DRAFT, "title": "A suite of ccbed", **head, "type": "object", "required": ["suite", "trials"],
        "definitions": KINDS,
    }  # fmt: skip


def _with(cls: Any, more: Mapping[str, Schema]) -> Schema:
    """``parameters`` with other schemas for some fields; their meanings stay."""
    schema = parameters(cls)
    for name, other in more.items():
        meaning = (
            {"description": schema["properties"][name]["description"]}
            if "description" in schema["properties"][name]
            else {}
        )
        schema["properties"][name] = {**other, **meaning}
    return schema


# --- inventories --------------------------------------------------------------------------------------------------------

COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": variables.MAX_COUNT}
NO_PROXY = r"^[A-Za-z0-9._*:/-]+( *, *[A-Za-z0-9._*:/-]+)*$"
PATH: Schema = {"type": "string", "pattern": "^[/~]"}
ARGV: Schema = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "string"}]}


def control(*states: str) -> Schema:
    return {"type": "object", "properties": dict.fromkeys(states, ARGV)}


#: Variable -> (schema, meaning).
VARIABLES: Mapping[str, tuple[Schema, str]] = {
    "bed": ({"type": "string", "pattern": f"^{variables._NAME.pattern}$"}, "Name of the bed; without it the name of the file."),
    "provider": ({"enum": list(variables.PROVIDERS)}, "What nodes are: processes of this machine, containers, or nodes of a Slurm job."),
    "nodes": (COUNT, "Nodes on each host."),
    "spares": (COUNT, "Warm spare nodes on each host."),
    "max_nodes": (COUNT, "The most nodes that each host may hold; those beyond its own are room for recovery replace."),
    "standby": (COUNT, "Warm containers beside the nodes of a host; a lost node takes one."),
    "gpus": (
        {"anyOf": [COUNT, {"const": "all"}, {"type": "array", "items": {"type": ["string", "integer"]}}]},
        "GPUs of each node: a count, all, or a list that the nodes share.",
    ),
    "address": ({"type": "string"}, "Numeric address that the host's nodes listen on."),
    "interface": (TEXT, "Network interface of the training's traffic."),
    "workdir": (PATH, "Directory of the bed on its hosts."),
    "shared_dir": (PATH, "Directory that all hosts share, for checkpoints."),
    "data_dir": (PATH, "Directory of the data sets on the hosts."),
    "env": ({"type": "object"}, "Environment variables of every rank."),
    "python": (PATH, "Interpreter of the nodes and their ranks, in an environment with torch; in an image for containers."),
    "isolation": ({"enum": ["none", "namespace"]}, "namespace: each process node has its own network (root)."),
    "link": (
        {"type": "object", "properties": {key: {} for key in ("rate", "burst", "delay", "loss", "groups", "uplink")},
         "additionalProperties": False},
        "Shape of each node's link, such as {rate: 1gbit}.",
    ),
    "allow_faults": ({"enum": list(SAFETY_ORDER)}, "The highest class of faults that is allowed on the bed."),
    "start_timeout": (TIME, "How long a node may take to start."),
    "container": ({"enum": list(slurm_options.CONTAINERS)}, "Slurm: what runs the nodes in containers of ccbed_image."),
    "image": (TEXT, "Image of the containers; of a Slurm job the path of its file."),
    "mounts": (
        {"anyOf": [{"type": "array", "items": {"type": "string", "pattern": "^/.*:/"}}, {"type": "string", "pattern": "^/.*:/"}]},
        "Mounts of the containers: /source:/target or /source:/target:ro.",
    ),
    "user": ({"type": ["string", "integer"]}, "User of the containers, by number."),
    "rdma": ({"type": "boolean"}, "Adds /dev/infiniband, unlimited locked memory and IPC_LOCK."),
    "cpus": ({"type": ["number", "string"]}, "CPUs of each container, such as 2 or 0.5."),
    "memory": (SIZE, "Memory of each container, without swap."),
    "shm_size": (SIZE, "Size of /dev/shm of each container."),
    "network": ({"enum": ["host", "private"]}, "Network of the containers."),
    "http_proxy": ({"type": "string", "pattern": r"^https?://\S+$"}, "HTTP proxy of a host: in its containers and for its preparation."),
    "https_proxy": ({"type": "string", "pattern": r"^https?://\S+$"}, "The same for addresses that begin with https."),
    "no_proxy": (
        {"anyOf": [{"type": "string", "pattern": NO_PROXY}, {"type": "array", "items": {"type": "string"}}]},
        "What is reached without the proxy, besides the bed's own nodes.",
    ),
    "engine": ({"type": "string", "pattern": "^/"}, "Socket of the host's container engine."),
    "engine_control": (control("start", "stop"), "Commands that start and stop the engine (stop-engine)."),
    "power": (control("off", "on"), "Commands that switch the host's power (power-off)."),
    "ssh_control": (control("start", "stop"), "Commands that start and stop the host's sshd (stop-ssh)."),
    "switch_port": (control("down", "up"), "Commands that cut and restore the host's link (cut-link)."),
    "known_hosts": ({"type": "string"}, "File of known SSH host keys."),
    "ssh_first_contact": ({"type": "boolean"}, "Accept the key of a host that is contacted for the first time."),
    "ports": (
        {"type": "string", "pattern": r"^\d{1,5}-\d{1,5}$"},
        "Slurm: ports of this machine that the nodes connect to, such as 30000-30100.",
    ),
    "time": (
        {"type": "string", "pattern": f"^({slurm_options._CLOCK.pattern}|{slurm_options._UNITS.pattern})$"},
        "Slurm: time limit of the job, such as 2h, 12:00:00 or 1-06:00:00.",
    ),
    "partition": (TEXT, "Slurm: partition of the job."),
    "account": (TEXT, "Slurm: account that is charged."),
    "qos": (TEXT, "Slurm: quality of service."),
    "constraint": (TEXT, "Slurm: features of the nodes."),
    "reservation": (TEXT, "Slurm: reservation to run in."),
    "exclude": (TEXT, "Slurm: nodes to leave out, such as gpu[07-08]."),
    "gres": (TEXT, "Slurm: generic resources of each node, such as gpu:8."),
    "nodelist": (TEXT, "Slurm: nodes that the job must have."),
    "sbatch": ({"type": "object"}, "Slurm: further long options of sbatch; true for an option without a value."),
}  # fmt: skip


def inventory() -> Schema:
    """An Ansible inventory in YAML: ccbed's variables at all, in groups and on hosts; a template may stand for any value."""
    assert VARIABLES.keys() == variables.KNOWN.keys()
    template = {"$ref": "#/definitions/template"}
    own = {
        f"{variables.PREFIX}{name}": {"anyOf": [schema, template], "description": meaning}
        for name, (schema, meaning) in VARIABLES.items()
    }
    unknown = f"^{variables.PREFIX}(?!({'|'.join(sorted(VARIABLES))})$)"
    variable_map = {"type": ["object", "null"], "properties": own, "patternProperties": {unknown: False}}
    group = {
        "type": ["object", "null"],
        "properties": {
            "hosts": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/definitions/variables"}},
            "vars": {"$ref": "#/definitions/variables"},
            "children": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/definitions/group"}},
        },
    }
    return {
        "$schema": DRAFT, "title": "An inventory of ccbed", "type": "object",
        "additionalProperties": {"$ref": "#/definitions/group"},
        "definitions": {"template": {"type": "string", "pattern": r"\{\{"}, "variables": variable_map, "group": group},
    }  # fmt: skip
