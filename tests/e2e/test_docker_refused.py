"""What keeps a bed of containers from being there: one sentence with the fix, exit code 4, and nothing left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..unit.test_container_engine import OLD, answering
from .conftest import ROOT, ccbed
from .test_docker_bed import inventory, labelled, nothing_is_left

pytestmark = pytest.mark.e2e


def test_a_container_with_our_name_that_is_not_ours_is_not_touched(engine: Any, image: str, tmp_path: Path) -> None:
    theirs = engine.containers.create(image, ["true"], name="ccbed-boxtheirs-n0")
    try:
        code, output = ccbed(tmp_path / "state", "up", str(inventory(tmp_path, image, "boxtheirs", 1)))
        assert code == 4
        assert (
            "container ccbed-boxtheirs-n0 is not of this bed: remove it with docker rm -f ccbed-boxtheirs-n0" in output
        )
        assert ccbed(tmp_path / "state", "down", "boxtheirs")[0] == 0
        assert [container.id for container in labelled(engine, "boxtheirs")] == [theirs.id]
    finally:
        theirs.remove(force=True)
    nothing_is_left(engine, tmp_path / "state", "boxtheirs")


def test_an_interpreter_that_the_image_lacks_is_named_with_the_fix(engine: Any, image: str, tmp_path: Path) -> None:
    code, output = ccbed(
        tmp_path / "state", "up", str(inventory(tmp_path, image, "boxpython", 1, python="/nowhere/python"))
    )
    assert code == 4
    assert "error: node n0: the image has no /nowhere/python" in output
    assert "set ccbed_python to the image's interpreter" in output
    assert ccbed(tmp_path / "state", "down", "boxpython")[0] == 0
    nothing_is_left(engine, tmp_path / "state", "boxpython")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"image": "ccbed/none:1"}, "image ccbed/none:1 is missing: ccbed image build, or docker pull ccbed/none:1"),
        ({"engine": "/nowhere/docker.sock"}, r"/nowhere/docker.sock: no such socket"),
        ({"user": "7"}, "ccbed_user 7: the bed's directory belongs to uid"),
        ({"gpus": '["nvidia.com/gpu=0"]'}, "CDI device nvidia.com/gpu=0 needs Docker Engine 25"),
    ],
)
def test_what_is_missing_is_one_sentence_with_the_fix(
    engine: Any, image: str, tmp_path: Path, given: dict[str, str], wanted: str
) -> None:
    if "gpus" in given and int(engine.version()["Version"].split(".")[0]) >= 25:
        pytest.skip("this engine knows CDI")
    more = {"image": image, **given}
    file = inventory(tmp_path, more.pop("image"), "boxless", 1, **more)
    code, output = ccbed(tmp_path / "state", "up", str(file))
    assert code == 4, output
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and re.search(wanted, errors[0]), output
    assert "Traceback" not in output and labelled(engine, "boxless") == []
    if "engine" not in given:
        assert ccbed(tmp_path / "state", "down", "boxless")[0] == 0
        nothing_is_left(engine, tmp_path / "state", "boxless")


def test_an_engine_that_is_too_old_is_one_sentence(image: str, tmp_path: Path) -> None:
    with answering(tmp_path / "old.sock", OLD):
        code, output = ccbed(
            tmp_path / "state", "up", str(inventory(tmp_path, image, "boxold", 1, engine=tmp_path / "old.sock"))
        )
    assert code == 4
    assert "the container engine is too old (its API is 1.40): install Docker 20.10 or newer" in output


def test_who_may_not_use_the_socket_is_told_the_group(engine: Any, image: str, tmp_path: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root and setpriv, to be somebody else")
    home = Path("/tmp") / f"ccbed-nobody-{os.getpid()}"
    home.mkdir(mode=0o755)
    try:
        file = inventory(home, image, "boxnobody", 1)
        os.chown(home, 65534, 65534)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        argv = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "orchestrator.cli"]
        done = subprocess.run(
            [*argv, "up", str(file)], env=env, cwd=home, capture_output=True, text=True, timeout=900, check=False
        )
    finally:
        shutil.rmtree(home)
    if done.returncode in (126, 127) or "No module named" in done.stderr or "init_fs_encoding" in done.stderr:
        return  # nobody else may read this checkout or its interpreter; nothing that ccbed could say
    assert done.returncode == 4, done.stderr
    assert re.search(r"docker.sock: permission denied: add the user to the group that owns it \(\w+\)", done.stderr)
    assert "Traceback" not in done.stderr
