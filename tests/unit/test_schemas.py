"""The JSON Schemas for editors agree with the parser: what it accepts they accept, and unknown names they reject."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.core.inventory import variables
from orchestrator.core.spec import parse_trial, source_positions
from orchestrator.model.errors import UsageError
from orchestrator.nightly import parse_suite
from orchestrator.slurm import inventory_variables as slurm_options
from orchestrator.store import shipped

from . import schemas
from .golden import same_as_golden

ROOT = Path(__file__).parents[2]
CATALOGUE = plugins.discover()
TRIAL, INVENTORY, SUITE = schemas.trial(CATALOGUE), schemas.inventory(), schemas.suite(CATALOGUE)
GOLDEN = sorted((ROOT / "tests/golden/trials").glob("*.yml"))
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),), "integer": (int,),
    "number": (int, float),
}  # fmt: skip


def accepts(schema: Any, value: Any, root: Any) -> bool:
    """JSON Schema, as far as the two schemas use it."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return accepts(root["definitions"][schema["$ref"].rsplit("/", 1)[1]], value, root)
    return all(rule(schema, value, root) for rule in (_is_of_type, _is_in_limits, _has_known_names, _combines))


def _is_of_type(schema: Any, value: Any, root: Any) -> bool:
    names = schema.get("type", list(TYPES))
    kinds = [kind for name in ([names] if isinstance(names, str) else names) for kind in TYPES[name]]
    return type(value) in kinds and (value in schema["enum"] if "enum" in schema else True)


def _is_in_limits(schema: Any, value: Any, root: Any) -> bool:
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None and value == schema.get("const", value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value) and "const" not in schema
    if isinstance(value, list):
        is_long_enough = len(value) >= schema.get("minItems", 0)
        return is_long_enough and all(accepts(schema.get("items", {}), item, root) for item in value)
    return "const" not in schema


def _has_known_names(schema: Any, value: Any, root: Any) -> bool:
    if not isinstance(value, dict):
        return True
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return False
    if not set(schema.get("required", ())) <= value.keys():
        return False
    for name, item in value.items():
        rules = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        rules += [rule for pattern, rule in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
        if not all(accepts(rule, item, root) for rule in rules or [schema.get("additionalProperties", {})]):
            return False
    return True


def _combines(schema: Any, value: Any, root: Any) -> bool:
    branches = schema.get("anyOf")
    if branches and not any(accepts(branch, value, root) for branch in branches):
        return False
    chosen = [part["then"] for part in schema.get("allOf", ()) if accepts(part["if"], value, root)]
    return all(accepts(part, value, root) for part in chosen)


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("orchestrator/trials/trial.schema.json", TRIAL),
        ("orchestrator/core/inventory/inventory.schema.json", INVENTORY),
        ("orchestrator/nightly/suites/suite.schema.json", SUITE),
    ],
)
def test_the_schema_of_the_repository_is_that_of_the_parser(path: str, schema: Any) -> None:
    same_as_golden(f"../../{path}", json.dumps(schema, indent=1) + "\n")


def is_parsed(text: str) -> bool:
    try:
        parse_trial.parse(text, "t.yml", CATALOGUE)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("path", [*CATALOGUE.trials.values(), *map(str, GOLDEN)], ids=lambda path: Path(path).name)
def test_a_trial_that_the_parser_accepts_has_no_mark_in_an_editor(path: str) -> None:
    text = Path(path).read_text()
    if is_parsed(text):
        assert accepts(TRIAL, source_positions.load(text, "t.yml").content, TRIAL)


FORMS = [
    "params: {checkpoint-every: 5, batch: '64'}",
    "faults: [pause-node: {node: n2, at: 10s, for: 500ms}]",
    "faults: [crash-node: {node: 2, at: 'step=20,phase=allreduce'}]",
    "faults: [crash-node: {node: 1, at: {on: recovery.decided, nth: 2}}]",
    "faults: [slow-node: {node: 1, at: {step: 3}, cpu_percent: 40}]",
    "checks: [bit-exact, detected-within: 2s]",
    "checks: [detected-within: {seconds: 2s, detector: node.exit}]",
    "recovery: {policy: 'spare,restart'}",
    "recovery: {policy: [spare, restart], max_restarts: 2}",
    "world: {nodes: 2, timeout: 1m}",
    "liveness: {lost_s: 2s}",
    "seed: 9",
]
WRONG = [
    "parms: {}",
    "params: {bach: 64}",
    "world: {node: 4}",
    "faults: [crash-node: {node: 2, when: 10s}]",
    "faults: [crash-node: {node: 2, at: {stepp: 3}}]",
    "faults: [crash-node: {node: 2, at: {on: nothing}}]",
    "faults: [crash-node: {node: 2}, 7]",
    "checks: [detected-within: {second: 2s}]",
    "recovery: {policy: spares}",
    "liveness: {lost: never}",
    "seed: soon",
]


@pytest.mark.parametrize("form", FORMS)
def test_parser_and_schema_accept_every_form_of_a_value(form: str) -> None:
    text = f"trial: t\nworkload: train-dp\n{form}\n"
    assert is_parsed(text)
    assert accepts(TRIAL, source_positions.load(text, "t.yml").content, TRIAL)


@pytest.mark.parametrize("form", WRONG)
def test_parser_and_schema_reject_what_is_unknown(form: str) -> None:
    text = f"trial: t\nworkload: train-dp\n{form}\n"
    assert not is_parsed(text)
    assert not accepts(TRIAL, source_positions.load(text, "t.yml").content, TRIAL)


def is_suite(text: str) -> bool:
    try:
        parse_suite.parse(text, "s.yml", CATALOGUE, lambda name: (name, source_positions.load(trial_text(name), name)))
    except UsageError:
        return False
    return True


def trial_text(name: str) -> str:
    return Path(CATALOGUE.trials[name]).read_text()


@pytest.mark.parametrize("path", shipped.suites().values(), ids=lambda path: path.name)
def test_the_shipped_suites_have_no_mark_in_an_editor(path: Path) -> None:
    assert accepts(SUITE, source_positions.load(path.read_text(), path.name).content, SUITE)


@pytest.mark.parametrize(
    ("form", "is_good"),
    [
        ("budget: 30m\ntrials: [barrier]", True),
        ("trials: [{trial: barrier, deadline: 5s, precision: 2%, needs: [gpu], world: {nodes: all}}]", True),
        ("trials: [{trial: barrier, matrix: {world.nodes: [2, 4]}, metrics: {busbw: {floor: 2, xfail: T-1}}}]", True),
        ("defaults: {repeats: 3, deadline_s: 5}\ntrials: [{trial: dp-ring, faults: [crash-node: {node: 1}]}]", True),
        ("trials: []", False),
        ("trials: [{name: barrier}]", False),
        ("trials: [{trial: barrier, need: [gpu]}]", False),
        ("trials: [{trial: barrier, needs: [gpus]}]", False),
        ("trials: [{trial: barrier, matrix: {root: 0}}]", False),
        ("trials: [{trial: barrier, metrics: {busbw: {flor: 2}}}]", False),
        ("budget: soon\ntrials: [barrier]", False),
        ("defaults: {params: {}}\ntrials: [barrier]", False),
    ],
)
def test_parser_and_schema_agree_on_a_suite(form: str, is_good: bool) -> None:
    text = f"suite: s\n{form}\n"
    document = source_positions.load(text, "s.yml").content
    assert (is_suite(text), accepts(SUITE, document, SUITE)) == (is_good, is_good)


@pytest.mark.parametrize("path", sorted((ROOT / "inventories").glob("*.yml")), ids=lambda path: path.name)
def test_the_inventories_of_the_repository_have_no_mark_in_an_editor(path: Path) -> None:
    assert accepts(INVENTORY, source_positions.load(path.read_text(), path.name).content, INVENTORY)


VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "bed": (["lab"], ["Lab!"]),
    "provider": (["process", "docker", "slurm"], ["podman"]),
    "nodes": ([0, 4], [-1, 5000, "many"]),
    "spares": ([1], [-1]),
    "max_nodes": ([9], [-1, 5000]),
    "standby": ([1], [-1]),
    "gpus": ([2, "all", [0, 1]], ["some"]),
    "address": (["10.0.0.1"], [7]),
    "interface": (["eth0"], [["eth0"]]),
    "workdir": (["/w", "~/w"], [7]),
    "shared_dir": (["/s"], [7]),
    "data_dir": (["/d"], [7]),
    "env": ([{"A": "b"}], ["A=b"]),
    "python": (["/opt/own/bin/python", "~/own/bin/python3.11"], [7, "python3"]),
    "container": (["none", "pyxis", "apptainer"], ["podman"]),
    "isolation": (["none", "namespace"], ["vm"]),
    "link": ([{"rate": "1gbit"}], [{"speed": "1gbit"}, 7]),
    "allow_faults": (["process", "container", "node", "cluster"], ["all"]),
    "start_timeout": (["90s", 60], ["soon"]),
    "image": (["ccbed/cpu:1"], [["a"]]),
    "mounts": ([["/a:/b"], "/a:/b:ro"], [["a"]]),
    "user": (["1000:1000"], [[1]]),
    "rdma": ([True], ["yes"]),
    "cpus": ([2, 0.5, "2"], [[2]]),
    "memory": (["8g"], ["lots"]),
    "shm_size": (["8g"], ["lots"]),
    "network": (["host", "private"], ["bridge"]),
    "http_proxy": (["http://proxy:3128", "https://u:p%40@10.0.0.1"], ["proxy:3128", 7, "http://a b"]),
    "https_proxy": (["http://[fd00::1]:3128"], ["socks5://proxy"]),
    "no_proxy": (["a,.b.example", ["10.0.0.0/8", "*.c"]], ["a b"]),
    "engine": (["/run/docker.sock"], ["docker.sock"]),
    "engine_control": ([{"start": ["a"], "stop": ["b"]}], ["a"]),
    "power": ([{"off": ["a"], "on": ["b"]}], ["a"]),
    "ssh_control": ([{"start": ["a"], "stop": ["b"]}], ["a"]),
    "switch_port": ([{"down": ["a"], "up": ["b"]}], ["a"]),
    "known_hosts": (["/k"], [7]),
    "ssh_first_contact": ([True], ["yes"]),
    "ports": (["30000-30100"], [30000, "30000"]),
    "time": (["30m", "2h", "12:00:00", "1-06", "1-06:00:00"], [90, "soon"]),
    **dict.fromkeys(slurm_options.NAMED, (["a100", "n[1-4]", "gpu:8"], [["a"]])),
    "sbatch": ([{"mem": "64G", "exclusive": True}], ["mem=64G"]),
}


@pytest.mark.parametrize("name", variables.KNOWN)
def test_parser_and_schema_agree_on_a_variable(name: str) -> None:
    good, wrong = VALUES[name]
    for value, is_good in [*((value, True) for value in good), *((value, False) for value in wrong)]:
        try:
            variables.KNOWN[name].read(value)
            is_read = True
        except (ValueError, TypeError):
            is_read = False
        document = {"all": {"vars": {f"ccbed_{name}": value}}}
        assert (is_read, accepts(INVENTORY, document, INVENTORY)) == (is_good, is_good), value


def test_an_unknown_variable_of_ccbed_is_marked_and_others_are_not() -> None:
    assert not accepts(INVENTORY, {"all": {"hosts": {"h": {"ccbed_node": 4}}}}, INVENTORY)
    assert accepts(INVENTORY, {"all": {"hosts": {"h": {"ansible_host": "h"}}}}, INVENTORY)
    assert accepts(INVENTORY, {"all": {"vars": {"ccbed_nodes": "{{ count }}"}}}, INVENTORY)
