"""Checkpoints: commits, losses, and the one that an attempt resumes from. ``sha256``: of the file, or of all ranks' files."""

from __future__ import annotations

from typing import Any

from ..payload import Payload, Record, null, payload, record
from .field_types import Attempt, Count, Rank, Seconds, Step


@record
class CheckpointFacts(Record):
    """The manifest of a checkpoint. ``parent``: the name of the one before it in its lineage."""

    name: str | None = null()
    file: str | None = null()
    step: Step | None = null()
    epoch: Attempt | None = null()
    sha256: str | None = null()
    parent: str | None = null()
    bytes: Count | None = null()


@record
class SkippedCheckpoint(Record):
    """A damaged or half-written checkpoint."""

    name: str | None = None
    reason: str | None = None


@payload("resume.chosen", writer="ctl")
class ResumeChosen(Payload):
    """The checkpoint that every rank loads; only ``step`` 0 for a fresh start."""

    name: str | None = None
    file: str | None = None
    step: Step | None = None
    epoch: Attempt | None = None
    sha256: str | None = None
    parent: str | None = None
    bytes: Count | None = None


@payload("checkpoint.commit", writer="rank")
class CheckpointCommit(Payload):
    """A checkpoint was committed. ``files``: how many, where each rank wrote its own; ``write_s``: time to write and commit."""

    rank: int | None = None
    name: str | None = None
    step: Step | None = None
    epoch: Attempt | None = None
    sha256: str | None = None
    parent: str | None = null()
    bytes: Count | None = None
    write_s: Seconds | None = None
    files: Count | None = None


@payload("save.committed", writer="rank")
class SaveCommitted(Payload):
    """A user's script committed a checkpoint after ``n`` steps of its process. ``path``: as the system that wrote it names it."""

    rank: Rank
    path: str | None = null()
    n: Step | None = None
    bytes: Count | None = null()


@payload("checkpoint.refused", writer="rank")
class CheckpointRefused(Payload):
    """A commit of an earlier attempt was rejected: ``fence`` is the attempt that may commit."""

    rank: int | None = None
    name: str | None = None
    fence: Any = None


@payload("checkpoint.failed", writer="rank")
class CheckpointFailed(Payload):
    """The checkpoint is lost, for example because the disk is full; the training continues."""

    rank: int | None = None
    name: str | None = None
    reason: str | None = None
    attempts: Count | None = None
    tried_s: Seconds | None = None


@payload("checkpoint.skipped", writer="ctl")
class CheckpointSkipped(Payload):
    """The checkpoint is damaged or half-written; the one before it is taken."""

    name: str | None = None
    reason: str | None = None
