"""ccbed_python: the interpreter of nodes, from the inventory to the keeper, and what one must have."""

from __future__ import annotations

import dataclasses
import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

from orchestrator.core.bed import container_requests
from orchestrator.core.bed.diff import diff
from orchestrator.model.errors import UsageError
from orchestrator.model.requirements import HOST_PYTHON, HOST_TORCH, version_text
from orchestrator.providers import interpreters
from orchestrator.providers.interpreters import Interpreter
from orchestrator.providers.preflight import checked

from . import beds

OWN = "/opt/own/bin/python"
GOOD = Interpreter(path=OWN, python="3.10.13", torch="2.4.0+cu121", numpy="1.26.4")


def inventory(variables: str, *hosts: str) -> str:
    named = "".join(f"    {host}\n" for host in hosts or ("localhost: {ansible_connection: local}",))
    return f"all:\n  hosts:\n{named}  vars: {{ccbed_nodes: 2, {variables}}}\n"


def docker(*hosts: str) -> str:
    return inventory("ccbed_provider: docker, ccbed_python: /opt/a/bin/python", *hosts)


def test_it_is_part_of_what_a_node_is() -> None:
    plain, own = (
        beds.local(inventory("ccbed_spares: 1")),
        beds.local(inventory(f"ccbed_spares: 1, ccbed_python: {OWN}")),
    )
    assert {node.python for node in plain.nodes} == {""}
    assert {node.python for node in own.nodes} == {OWN}
    assert not {node.hash for node in plain.nodes} & {node.hash for node in own.nodes}


def test_a_tilde_is_the_home_of_the_user() -> None:
    assert beds.local(inventory("ccbed_python: ~/own/bin/python")).nodes[0].python == "/h/own/bin/python"


def test_a_change_replaces_keeper_and_nodes_and_says_so() -> None:
    before, after = beds.local(inventory("ccbed_env: {}")), beds.local(inventory(f"ccbed_python: {OWN}"))
    plan = diff(after, beds.up(before), before)
    assert plan.keeper is not None
    assert (plan.keeper.action, plan.keeper.reason) == ("replace", f"python default -> {OWN}")
    assert {(change.action, change.reason) for change in plan.changes} == {("replace", plan.keeper.reason)}
    present = dataclasses.replace(beds.up(after), keeper_python=OWN)
    assert diff(after, present).empty
    assert diff(before, present, after).keeper is not None, "back to that of ccbed"


def test_hosts_with_containers_may_differ_and_the_container_runs_it() -> None:
    bed = beds.local(
        docker("h1: {ansible_host: 10.0.0.1}", "h2: {ansible_host: 10.0.0.2, ccbed_python: /opt/b/bin/python3}")
    )
    assert [node.python for node in bed.nodes] == ["/opt/a/bin/python"] * 2 + ["/opt/b/bin/python3"] * 2
    request = container_requests.request(
        bed, bed.nodes[3], archive="/x/agent.pyz", owner=(1000, 1000), addresses={}, tag="t"
    )
    assert request["Entrypoint"][:2] == ["/opt/b/bin/python3", "/x/agent.pyz"]
    assert diff(bed, beds.up(bed)).empty, "the keepers of containers run in another interpreter"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (inventory("ccbed_python: python3"), "local.yml:4: vars.ccbed_python: must be an absolute path"),
        (inventory("ccbed_python: [a]"), "vars.ccbed_python: must be an absolute path"),
        (inventory("ccbed_provider: docker, ccbed_python: ~/p/python"), "must be an absolute path in the image"),
        (
            inventory(
                "ccbed_env: {}", f"h1: {{ansible_connection: local, ccbed_python: {OWN}}}", "h2: {ansible_connection: local}"
            ),
            "local.yml:3: hosts.h1.ccbed_python: must be the same for all process nodes of this machine",
        ),
    ],
)  # fmt: skip
def test_a_wrong_one_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        beds.local(text)
    assert problem in "\n".join(raised.value.problems)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"python": "", "problem": "No such file or directory"}, "No such file or directory"),
        ({"python": "3.9.18"}, "Python 3.9.18 is too old: 3.10 or newer is needed"),
        ({"torch": ""}, "torch is not installed there: 2.4 or newer is needed"),
        ({"torch": "2.3.1"}, "torch 2.3.1 is too old: 2.4 or newer is needed"),
        ({"torch": "1.13.1"}, "torch 1.13.1 is too old"),
        ({"problem": "OSError: libgomp.so.1"}, "torch cannot be imported there: OSError: libgomp.so.1"),
    ],
)
def test_what_it_lacks_is_named_with_the_next_step(change: dict[str, str], problem: str) -> None:
    lacking = interpreters.requirement(dataclasses.replace(GOOD, **change), named=True)
    assert (lacking.outcome, lacking.name) == ("fail", "torch")
    assert lacking.text.startswith(f"ccbed_python {OWN}: {problem}")
    own = interpreters.requirement(dataclasses.replace(GOOD, **change), named=False)
    assert "pip install 'ccbed[local]'" in own.fix
    assert "ccbed_python" in own.fix


def test_the_oldest_ones_suffice_and_numpy_is_optional() -> None:
    oldest = Interpreter(path=OWN, python=f"{version_text(HOST_PYTHON)}.0", torch=f"{version_text(HOST_TORCH)}.0")
    enough = interpreters.requirement(oldest, named=True)
    assert (enough.outcome, enough.text) == ("ok", "2.4.0, Python 3.10.0, no numpy")
    assert interpreters.requirement(GOOD, named=True).text == "2.4.0+cu121, Python 3.10.13"


def test_this_interpreter_is_inspected_without_its_torch_being_imported() -> None:
    result = interpreters.probe(sys.executable)
    assert result.python == platform.python_version()
    assert result.torch == metadata.version("torch")
    assert result.problem == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("#!/bin/sh\necho something; exit 3\n", "it is not a Python: exit code 3"),
        ("#!/bin/sh\necho broken >&2; exit 1\n", "it is not a Python: exit code 1, broken"),
        ("#!/nowhere/python\n", "No such file"),
    ],
)
def test_what_is_no_python_is_named(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "python"
    file.write_text(content)
    file.chmod(0o700)
    assert problem in interpreters.probe(str(file)).problem


def test_what_is_missing_or_not_executable_is_named(tmp_path: Path) -> None:
    assert interpreters.probe(str(tmp_path / "python")).problem == "No such file or directory"
    (tmp_path / "python").write_text("#!/bin/sh\n")
    assert interpreters.probe(str(tmp_path / "python")).problem == "Permission denied"


def test_a_torch_that_is_broken_is_found_by_importing_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn.so.9: cannot open shared object file')")
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    file.chmod(0o700)
    assert interpreters.probe(str(file)).problem == ""
    assert interpreters.probe(str(file), import_torch=True).problem == (
        "OSError: libcudnn.so.9: cannot open shared object file"
    )


def test_one_that_does_not_respond_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "LIMIT_S", 0.2)
    file = tmp_path / "python"
    file.write_text("#!/bin/sh\nexec sleep 60\n")
    file.chmod(0o700)
    assert "did not respond" in interpreters.probe(str(file)).problem


def test_preflight_names_the_versions_of_the_nodes_and_warns_where_they_differ() -> None:
    bed = beds.local()
    status = beds.up(bed)
    assert list(checked.versions(bed, status)) == [], "not known"
    nodes = [dataclasses.replace(node, torch="2.13.0+cpu", python="3.11.7") for node in status.nodes]
    (same,) = checked.versions(bed, dataclasses.replace(status, nodes=tuple(nodes)))
    assert (same.outcome, same.text) == ("ok", "2.13.0, Python 3.11.7 ok")
    nodes[4] = dataclasses.replace(nodes[4], torch="2.4.0")
    (other,) = checked.versions(bed, dataclasses.replace(status, nodes=tuple(nodes)))
    assert other.outcome == "warn"
    assert "2.13.0, Python 3.11.7 on n0 n1 n2 n3; 2.4.0, Python 3.11.7 on n4" in other.text
    assert "ccbed_python" in other.fix
