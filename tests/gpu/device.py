"""The device of these tests: the GPU, or in a rehearsal (CCBED_GPU_REHEARSAL=1) the CPU, so that typing errors show without one."""

from __future__ import annotations

import os

import pytest

IS_REHEARSAL = os.environ.get("CCBED_GPU_REHEARSAL") == "1"
NAME = "cpu" if IS_REHEARSAL else "cuda"
BACKEND = "gloo" if IS_REHEARSAL else "nccl"
#: For tests whose subject is CUDA itself: a rehearsal leaves them out, and the report lists them.
needs_cuda = pytest.mark.needs_cuda
