"""An engine's own words are told in ours, with what to do."""

from __future__ import annotations

import pytest

from orchestrator.core.bed import error_explanations

MESSAGE = {
    'could not select device driver "" with capabilities: [[gpu]]': "the node requests GPUs, but the engine has no NVIDIA runtime",
    'could not select device driver "cdi" with capabilities: []': "the engine does not support CDI devices",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=9": "no CDI device nvidia.com/gpu=9 on this host",
    "failed to create task: runc create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded:"
    " unknown": "the NVIDIA driver of the host does not answer",
    "nvidia-container-cli: device error: 9: unknown device: unknown": "no GPU 9 on this host",
    'error gathering device information while adding custom device "/dev/infiniband": no such file or directory':
        "ccbed_rdma is set, but the host has no /dev/infiniband",
    'invalid mount config for type "bind": bind source path does not exist: /nfs/ccbed': "/nfs/ccbed does not exist",
    'exec: "python3": executable file not found in $PATH: unknown': "the image has no python3",
    'exec: "/opt/own/bin/python": stat /opt/own/bin/python: no such file or directory': "the image has no /opt/own/bin/python",
    "exec /opt/own/bin/python failed: No such file or directory": "the image has no /opt/own/bin/python",
    "RuntimeError: torch 2.3.1 in /usr/bin/python3 is too old: 2.4 or newer is needed": "the image has PyTorch 2.3.1",
    "No such image: example/torch:1": "image example/torch:1 is not on this host",
    "range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available": "ccbed_cpus is more than the host has (2.00)",
    "mkdir /var/lib/docker/overlay2/x: no space left on device": "no space is left on the engine's disk",
    "unable to find network with name or ID ccbed-lab: network not found": "network ccbed-lab of the bed is gone",
    "network ccbed-lab not found": "network ccbed-lab of the bed is gone",
}  # fmt: skip


@pytest.mark.parametrize("expected", MESSAGE, ids=lambda expected: expected[-40:])
def test_what_the_engine_says_is_told_with_what_to_do(expected: str) -> None:
    explanation = error_explanations.explain_engine(expected)
    assert explanation is not None
    assert explanation.text == MESSAGE[expected]
    assert explanation.fix and "{" not in explanation.text


def test_what_nobody_has_heard_of_is_left_in_the_engines_words() -> None:
    assert error_explanations.explain_engine("the moon is in the wrong phase") is None
