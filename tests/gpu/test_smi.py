"""The full reports of nvidia-smi, idle and busy, are kept beside the report of these tests, without what identifies the machine."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from orchestrator.node.oslayer import gpus

from . import device

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]
#: What identifies a machine or a job on it.
PRIVATE = re.compile(
    r"(<(serial|uuid|board_id|gpu_part_number|board_part_number|module_id|chassis_serial_number|pdi|process_name|pid"
    r"|host_vgpu_guest_id|tray_index|slot_number|clique_id|cluster_uuid|platformId)>)[^<]*(</)"
)


@contextmanager
def busy() -> Iterator[None]:
    """The device multiplies matrices for the time of the block; it has been at it for a second."""
    is_over = threading.Event()

    def work() -> None:
        rows = 256 if device.IS_REHEARSAL else 8192
        matrix = torch.ones(rows, rows, device=device.NAME)
        while not is_over.is_set():
            torch.mm(matrix, matrix)
            if not device.IS_REHEARSAL:
                torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        if not device.IS_REHEARSAL:
            time.sleep(1.5)  # the utilization is a mean over the last second
        yield
    finally:
        is_over.set()
        thread.join()


def report_of_nvidia_smi(path: Path) -> str:
    """The report as a node takes it, without what identifies the machine."""
    process = gpus.start_report(path)
    assert process is not None
    assert process.wait(60) == 0
    text = path.read_text()
    return PRIVATE.sub(lambda match: f"{match[1]}-{match[3]}", re.sub(r"GPU-[0-9a-f-]{36}", "GPU-0", text))


def utilization(text: str) -> int | None:
    """The utilization of the first GPU in percent; None where the driver does not know it, as for a GPU in parts (MIG)."""
    root = ElementTree.fromstring(text)
    assert root.tag == "nvidia_smi_log"
    value = str(root.findtext("gpu/utilization/gpu_util")).split()[0]
    return int(value) if value.isdigit() else None


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_report_is_kept(state: str, tmp_path: Path, out: Path, record_property: Figure) -> None:
    if state == "busy":
        with busy():
            text = report_of_nvidia_smi(tmp_path / "report.xml")
    else:
        text = report_of_nvidia_smi(tmp_path / "report.xml")
    (out / f"nvidia-smi-{state}.xml").write_text(text)
    assert "1234567890" not in text and "/opt/job" not in text
    record_property("utilization", utilization(text))
    assert state == "idle" or device.IS_REHEARSAL or utilization(text) in (None, *range(51, 101))


def test_health_of_the_gpu_can_be_read(record_property: Figure) -> None:
    health = gpus.check_health(limit_s=30.0)
    record_property("health", health)
    assert health.get("count"), health
    assert subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=True).stdout.startswith(b"GPU 0")
