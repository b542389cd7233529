"""Files that cannot import the table of requirements say the same as it does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from orchestrator.core.bed import engine_kind
from orchestrator.model import container, requirements
from orchestrator.model.requirements import version_text
from orchestrator.prepare import facts

ROOT = Path(__file__).parents[2]
VARIABLES = (ROOT / "playbooks" / "vars.yml").read_text()


def test_the_script_that_reads_a_host_looks_for_the_oldest_python() -> None:
    assert facts.OLDEST_PYTHON == requirements.HOST_PYTHON
    assert {f"python{version_text(requirements.HOST_PYTHON)}", "python3.13"} <= set(facts.PYTHONS)


def test_the_script_that_reads_a_host_asks_podman_the_same_as_the_orchestrator() -> None:
    script = Path(facts.__file__).read_text()
    assert f'"{engine_kind.PODMAN_INFO}"' in script and f"/{engine_kind.NO_CONTAINER}/update" in script
    podman = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}
    assert container.is_podman(podman) and '== "Podman Engine"' in script


def test_the_playbooks_want_the_same_versions_image_and_socket() -> None:
    assert f"selectattr('value', 'ge', {list(requirements.HOST_PYTHON)})" in VARIABLES
    assert f"ccbed needs {version_text(requirements.HOST_PYTHON)};" in VARIABLES
    for oldest in (requirements.ENGINE, requirements.PODMAN):
        assert f"is version('{version_text(oldest)}', '<')" in VARIABLES
        assert f"{version_text(oldest)} or newer is needed" in VARIABLES
    assert f"default('{requirements.CPU_IMAGE}')" in VARIABLES
    assert f"default('{requirements.ENGINE_SOCKET}')" in VARIABLES


def test_images_and_set_up_pin_the_torch_that_images_are_named_by() -> None:
    pinned = f"torch=={requirements.TORCH}"
    assert pinned in (ROOT / "images" / "requirements.txt").read_text().splitlines()
    assert f"TORCH={pinned}" in (ROOT / ".ci" / "setup").read_text().splitlines()
    for path in (ROOT / "images").glob("*"):
        assert set(re.findall(r"ccbed/(?:cpu|cuda):([0-9.]+[0-9])", path.read_text())) <= {requirements.TORCH}


def test_the_package_needs_torch_only_for_ranks_on_this_machine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if name.startswith(("torch", "matplotlib"))]
    assert project["optional-dependencies"]["local"] == [f"torch>={version_text(requirements.HOST_TORCH)}"]
