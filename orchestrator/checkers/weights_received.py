"""Every rank has the weights that rank 0 broadcast, by their hash: what replicas-identical compares before the first step."""

from __future__ import annotations

from dataclasses import replace

from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from . import replicas_identical


def check(run: Run, params: Params) -> Verdict:
    """Judge by SHA-256 of the parameters of each rank after the broadcast; they differ before it."""
    return replace(replicas_identical.judged(run, is_start=True), check="weights-received")
