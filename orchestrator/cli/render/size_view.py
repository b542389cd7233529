"""How a sizing reads: on the terminal, as JSON, and as the comments of a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.sizing import traces
from ...core.sizing.batches import Share
from ...core.sizing.layout import Layout
from ...core.sizing.memory import Memory
from ...core.sizing.training_size import Fit, Row, TrainingSize
from .terminal import Terminal


def show(terminal: Terminal, found: TrainingSize) -> None:
    terminal.lines(_head(found))
    if found.rows:
        terminal.line()
        terminal.table(*_table(found))
        terminal.line()
    terminal.lines(_tail(found))


def notes(found: TrainingSize) -> list[str]:
    """What the head of an emitted trial says."""
    asked, trials = found.request, found.batches
    steps = f"{trials.total:,} steps of {trials.batch:,} samples" if trials else "one step"
    paired = any(row.collective.operation == "send-recv" for row in found.rows)
    return [
        f"{asked.model.name}, {asked.layout.label} on {asked.layout.gpus} GPUs: the collectives of {steps}.",
        "Collective by collective; trials = its count per step x steps.",
        *(["A send-recv carries one message each way at once: half as many trials as messages."] if paired else []),
    ]


def document(found: TrainingSize) -> dict[str, Any]:
    """All figures, for programs."""
    asked, model = found.request, found.request.model
    return {
        "model": {
            "name": model.name, "parameters": model.parameters, "bytes": model.bytes, "dtype": model.dtype, "source": model.source,
            "gradients": [{"layer": name, "bytes": size} for name, size in model.gradients],
        },
        "layout": {**dataclasses.asdict(asked.layout), "gpus": asked.layout.gpus},
        "trials": None if found.batches is None else {
            "total": found.batches.total, "each_epoch": found.batches.steps_per_epoch, "batch": found.batches.batch,
            "last_batch": found.batches.last, "short": found.batches.short,
        },
        "shares": [dataclasses.asdict(share) for share in found.shares],
        "collectives": [_row_document(row) for row in found.rows],
        "step_seconds": found.step_seconds,
        "link": None if asked.link is None else {"bits_per_s": asked.link.rate, "alpha_s": asked.link.alpha,
                                                 "beta_s_per_byte": asked.link.beta},
        "memory": _memory_document(found.memory),
        "fit": None if found.fit is None else _fit_document(found.fit),
    }  # fmt: skip


def replay_document(found: traces.Replay) -> dict[str, Any]:
    return {
        "form": found.form, "ranks": found.ranks, "collectives": found.collectives, "timed": found.timed, "notes": found.notes,
        "items": [item.document for item in found.items],
    }  # fmt: skip


def show_replay(terminal: Terminal, found: traces.Replay, path: Path) -> None:
    terminal.line(
        f"trace     {path}: {found.form}, {found.ranks} ranks, {found.collectives:,} collectives in {len(found.items):,} items"
    )
    terminal.line()
    head = ("OPERATION", "BYTES", "TRIALS", "GAP MS", "DTYPE", "GROUPS", "ALGORITHM")
    rows = [
        (
            item.operation,
            f"{item.bytes:,}",
            f"{item.trials:,}",
            f"{item.gap_ms:.3f}",
            item.dtype,
            _groups(item.groups),
            item.algorithm,
        )
        for item in found.items[:_MOST]
    ]
    terminal.table(head, rows)
    if len(found.items) > _MOST:
        terminal.line(f"  and {len(found.items) - _MOST:,} more: --json or --emit has all")
    terminal.line()
    terminal.lines(f"note      {note}" for note in found.notes)


#: Items of a trace that the terminal shows.
_MOST = 40


def _groups(groups: tuple[tuple[int, ...], ...]) -> str:
    if not groups:
        return "all"
    first = ",".join(map(str, groups[0]))
    return first if len(groups) == 1 else f"{len(groups)}: {first} …"


def _head(found: TrainingSize) -> Iterator[str]:
    asked, model, trials = found.request, found.request.model, found.batches
    yield f"model     {model.name}: {model.parameters:,} parameters, {model.bytes:,} bytes of {model.dtype} ({model.source})"
    if model.shape is None and len(model.gradients) <= 12:
        sizes = " / ".join(f"{size:,}" for _, size in model.gradients)
        yield f"gradients {sizes} bytes, the last layer first"
    yield f"strategy  {asked.layout.label} on {asked.layout.gpus} GPUs{_batches(found)}"
    yield from _scheme(found)
    if trials:
        short = f"; the last has {trials.last:,} of {trials.batch:,} samples" if trials.short else ""
        yield f"trials    {trials.total:,} = ceil({trials.dataset:,} / {trials.batch:,}) x {trials.epochs} epoch{_s(trials.epochs)}{short}"
    yield from (_share(share) for share in found.shares)


def _scheme(found: TrainingSize) -> Iterator[str]:
    """What is counted, where a trial of ccbed's own with that strategy does it otherwise."""
    layout = found.request.layout
    if layout.gathered and layout.tp > 1:
        yield "scheme    inputs gathered: each GPU has its part of every weight and works on the whole batch, which all gather"
        yield "          ccbed run tp-ring (train-tp) cuts layers by columns and by rows instead: it moves activations, not inputs"
    if layout.strategy == "fsdp" and layout.zero == 3 and layout.dp > 1:
        yield "scheme    parameters as they are; FSDP2 (train-fsdp) fills up the first dimension of each to a multiple of the GPUs,"
        yield f"          so that a run moves somewhat more where it does not divide by {layout.dp}"


def _share(share: Share) -> str:
    """``last`` is None where nothing says how many samples there are in all."""
    samples, weight = f"{share.samples:,} samples", f"loss x {share.weight:.6g}"
    if share.last is not None:
        samples, weight = f"{samples}, {share.last:,} of the last", f"{weight}, x {share.last_weight:.6g}"
    return f"share     rank {share.rank}: {share.share:g} of a batch = {samples}; {weight} (n_i p / N)"


def _batches(found: TrainingSize) -> str:
    layout, batch = found.request.layout, found.request.batch
    if batch is None or layout.microbatches == 1:
        return ""
    return f", {layout.microbatches} microbatches of a replica's batch"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _table(found: TrainingSize) -> tuple[list[str], list[list[str]]]:
    """Columns that say nothing here are left out."""
    timed = found.request.link is not None
    short = any(row.last_size != row.collective.size for row in found.rows)
    head = ["OPERATION", "GROUPS", "BYTES", *(["LAST STEP"] if short else []), "COUNT"]
    head += ["ALGORITHM", "MS EACH", "MS A STEP"] if timed else []
    return [*head, "WHAT", "FORMULA"], [_cells(row, timed=timed, short=short) for row in found.rows]


def _cells(row: Row, *, timed: bool, short: bool) -> list[str]:
    one = row.collective
    count = len(one.groups)
    cells = [
        one.operation,
        f"{count} x {one.axis} {one.ranks}" if count > 1 else f"{one.axis} {one.ranks}",
        f"{one.size:,}",
    ]
    cells += [f"{row.last_size:,}"] if short else []
    cells.append(f"{one.count:,}")
    if timed:
        cells += [
            row.price.algorithm if row.price else "-",
            _ms(row.price.seconds if row.price else None),
            _ms(row.step_seconds),
        ]
    return [*cells, one.what, one.source]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.3f}"


def _tail(found: TrainingSize) -> Iterator[str]:
    link = found.request.link
    moved = sum(row.collective.step_bytes for row in found.rows)
    if not found.rows:
        yield "moves     nothing: one GPU"
    elif link and found.step_seconds is not None:
        yield (
            f"time      {_ms(found.step_seconds)} ms of communication a step on {link.text} "
            f"(alpha {link.alpha * 1e6:g} us, beta {link.beta * 1e9:g} ns/byte)"
        )
        yield "          one collective after the other, nothing beside it, no computing; cost models of algorithms/"
    else:
        hint = "" if link else "; --link 100mbit,50us: how long that takes"
        yield f"moves     {moved:,} bytes a step in all rows, as S of nccl-tests{hint}"
    yield from _held(found.memory)
    if found.fit:
        yield from _fits(
            found.fit, found.request.layout, "" if found.memory.activations is not None else ", without activations"
        )


def _held(memory: Memory) -> Iterator[str]:
    each = memory.per_parameter
    activations = "not known" if memory.activations is None else f"{memory.activations:,}"
    yield (
        f"memory    {_gb(memory.total)} on the fullest GPU: weights {memory.weights:,} + gradients {memory.gradients:,} + "
        f"optimizer {memory.state:,} + activations {activations} bytes"
    )
    yield (
        f"          {memory.parameters:,} parameters there, {each.weights} + {each.gradients} + {each.state} bytes each before "
        f"ZeRO (arXiv:1910.02054); activations: {memory.source}"
    )
    yield "          not counted: the device's context, communication buffers, fragmentation"


def _fits(fit: Fit, layout: Layout, without: str) -> Iterator[str]:
    if fit.spare >= 0:
        yield f"fits      in {_gb(fit.limit)}: {_gb(fit.spare)} to spare{without}"
        return
    yield f"fits      not in {_gb(fit.limit)}: {_gb(-fit.spare)} too much{without}"
    if not fit.alternatives:
        yield f"          nothing fits on {layout.gpus} GPUs: more of them, a smaller --batch, --recompute full"
    for other, memory in fit.alternatives:
        yield f"          would fit: {options(other)} ({_gb(memory.total)})"


def options(layout: Layout) -> str:
    """How an arrangement is asked for."""
    found = [f"--strategy {layout.strategy}"]
    found += [f"--zero {layout.zero}"] if layout.zero else []
    found += [f"--{name} {size}" for name, size in (("tp", layout.tp), ("pp", layout.pp)) if size > 1]
    found += ["--sequence-parallel"] if layout.sequence_parallel else []
    found += [f"--recompute {layout.recompute}"] if layout.recompute != "none" else []
    return " ".join(found)


def _gb(size: int) -> str:
    if abs(size) < 10**5:
        return f"{size:,} bytes"
    if abs(size) < 10**8:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e9:,.1f} GB"


def _row_document(row: Row) -> dict[str, Any]:
    one = row.collective
    return {
        "operation": one.operation, "bytes": one.size, "last_bytes": row.last_size, "count": one.count, "dtype": one.dtype,
        "axis": one.axis, "groups": one.groups, "what": one.what, "formula": one.source,
        "cost": None if row.price is None else {"algorithm": row.price.algorithm, "rounds": row.price.rounds,
                                                "volume": row.price.volume, "seconds": row.price.seconds},
    }  # fmt: skip


def _memory_document(memory: Memory) -> dict[str, Any]:
    return {**dataclasses.asdict(memory), "total": memory.total}


def _fit_document(fit: Fit) -> dict[str, Any]:
    instead = [{"options": options(layout), "bytes": memory.total} for layout, memory in fit.alternatives]
    return {"limit": fit.limit, "fits": fit.spare >= 0, "spare": fit.spare, "instead": instead}
