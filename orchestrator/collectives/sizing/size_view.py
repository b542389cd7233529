"""A sizing on the terminal, as JSON, and as the comments of a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ...cli.render.terminal import Terminal
from ..app.estimate import Sized
from ..rank import link_fit
from . import link_price, traces
from .batch_shares import Share
from .gpu_memory import Memory
from .layout import Layout
from .replay_items import Item
from .training_size import Fit, Row, TrainingSize


def show_sized(terminal: Terminal, sized: Sized, trace: Path | None, *, as_json: bool) -> None:
    if as_json:
        known = sized.estimate
        terminal.json(document(known) if known else replay_document(sized.replay) if sized.replay else {})
        return
    if sized.estimate:
        show(terminal, sized.estimate)
    if sized.replay and trace:
        show_replay(terminal, sized.replay, trace)
    if sized.written:
        terminal.line(f"written   {sized.written}      to replay it: ccbed run {sized.written}")


def show(terminal: Terminal, sizing: TrainingSize) -> None:
    terminal.lines(_head(sizing))
    if sizing.rows:
        terminal.line()
        terminal.table(*_table(sizing))
        terminal.line()
    terminal.lines(_tail(sizing))


def document(sizing: TrainingSize) -> object:
    request, model = sizing.request, sizing.request.model
    return {
        "model": {
            "name": model.name, "parameters": model.parameters, "active_parameters": model.active_parameters,
            "bytes": model.bytes, "dtype": model.dtype, "source": model.source,
            "gradients": [{"layer": name, "bytes": size} for name, size in model.gradients],
        },
        "layout": {**dataclasses.asdict(request.layout), "gpus": request.layout.gpus},
        "trials": None if sizing.batches is None else {
            "total": sizing.batches.total, "each_epoch": sizing.batches.steps_per_epoch, "batch": sizing.batches.batch,
            "last_batch": sizing.batches.last, "short": sizing.batches.short,
        },
        "shares": [dataclasses.asdict(share) for share in sizing.shares],
        "collectives": [_row_document(row) for row in sizing.rows],
        "step_seconds": sizing.step_seconds,
        "link": None if request.link is None else {"bits_per_s": request.link.rate, "alpha_s": request.link.alpha,
                                                 "beta_s_per_byte": request.link.beta, "payload_share": request.link.payload},
        "memory": {**dataclasses.asdict(sizing.memory), "total": sizing.memory.total},
        "fit": None if sizing.fit is None else _fit_document(sizing.fit),
    }  # fmt: skip


def replay_document(replay: traces.Replay) -> object:
    return {
        "form": replay.form, "ranks": replay.ranks, "collectives": replay.collectives, "timed": replay.timed, "notes": replay.notes,
        "items": [item.document for item in replay.items],
    }  # fmt: skip


def show_replay(terminal: Terminal, replay: traces.Replay, path: Path) -> None:
    terminal.line(
        f"trace     {path}: {replay.form}, {replay.ranks} ranks, {replay.collectives:,} collectives in {len(replay.items):,} items"
    )
    terminal.line()
    head = ("OPERATION", "BYTES", "ITERATIONS", "GAP MS", "DTYPE", "GROUPS", "ALGORITHM")
    rows = [
        (
            item.operation,
            f"{item.bytes:,}",
            f"{item.trials:,}",
            _pace(item),
            item.dtype,
            _groups(item.groups),
            item.algorithm,
        )
        for item in replay.items[:_MOST]
    ]
    terminal.table(head, rows)
    if len(replay.items) > _MOST:
        terminal.line(f"  and {len(replay.items) - _MOST:,} more: --json or --emit has all")
    terminal.line()
    terminal.lines(f"note      {note}" for note in replay.notes)


#: Items of a trace that the terminal shows.
_MOST = 40


def _pace(item: Item) -> str:
    """The gaps, or the dependencies, of an item."""
    if item.after:
        return f"after {len(item.after)}"
    low, high = min(item.gaps_ms, default=0.0), max(item.gaps_ms, default=0.0)
    return f"{low:.3f}" if low == high else f"{low:.3f}-{high:.3f}"


def _groups(groups: tuple[tuple[int, ...], ...]) -> str:
    if not groups:
        return "all"
    first = ",".join(map(str, groups[0]))
    return first if len(groups) == 1 else f"{len(groups)}: {first} …"


def _head(sizing: TrainingSize) -> Iterator[str]:
    request, model, trials = sizing.request, sizing.request.model, sizing.batches
    active = f", {model.active_parameters:,} per token" if model.active_parameters < model.parameters else ""
    yield f"model     {model.name}: {model.parameters:,} parameters{active}, {model.bytes:,} bytes of {model.dtype} ({model.source})"
    if model.shape is None and len(model.gradients) <= 12:
        sizes = " / ".join(f"{size:,}" for _, size in model.gradients)
        yield f"gradients {sizes} bytes, the last layer first"
    yield f"strategy  {request.layout.label} on {request.layout.gpus} GPUs{_batches(sizing)}"
    yield from _scheme(sizing)
    if trials:
        short = f"; the last has {trials.last:,} of {trials.batch:,} samples" if trials.short else ""
        epochs = f"{trials.epochs} epoch{'s' * (trials.epochs != 1)}"
        yield f"steps     {trials.total:,} = ceil({trials.dataset:,} / {trials.batch:,}) x {epochs}{short}"
    yield from (_share(share) for share in sizing.shares)


def _scheme(sizing: TrainingSize) -> Iterator[str]:
    """Yield the communication scheme, where ccbed's own workload of that strategy uses another one."""
    layout = sizing.request.layout
    if layout.gathered and layout.tp > 1:
        yield "scheme    inputs are gathered: each GPU has a part of every weight, and computes the whole batch"
        yield "          ccbed run tp-ring (train-tp) splits layers by columns and rows instead: it moves activations, not inputs"
    if layout.strategy == "fsdp" and layout.zero == 3 and layout.dp > 1:
        yield "scheme    parameters without padding; FSDP2 (train-fsdp) pads their first dimension to a multiple of the GPUs,"
        yield f"          so a run moves more bytes where that dimension is not a multiple of {layout.dp}"


def _share(share: Share) -> str:
    """``share.last`` is None where the number of samples is not given."""
    samples, weight = f"{share.samples:,} samples", f"loss x {share.weight:.6g}"
    if share.last is not None:
        samples, weight = f"{samples}, {share.last:,} of the last", f"{weight}, x {share.last_weight:.6g}"
    return f"share     rank {share.rank}: {share.share:g} of a batch = {samples}; {weight} (n_i p / N)"


def _batches(sizing: TrainingSize) -> str:
    layout, batch = sizing.request.layout, sizing.request.batch
    if batch is None or layout.microbatches == 1:
        return ""
    return f", {layout.microbatches} microbatches of a replica's batch"


def _table(sizing: TrainingSize) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of the table, without columns that do not apply."""
    timed = sizing.request.link is not None
    short = any(row.last_size != row.collective.size for row in sizing.rows)
    head = ["OPERATION", "GROUPS", "BYTES", *(["LAST STEP"] if short else []), "COUNT"]
    head += ["ALGORITHM", "MS EACH", "MS PER STEP"] if timed else []
    return [*head, "WHAT", "FORMULA"], [_cells(row, timed=timed, short=short) for row in sizing.rows]


def _cells(row: Row, *, timed: bool, short: bool) -> list[str]:
    collective = row.collective
    count = len(collective.groups)
    cells = [
        collective.operation,
        f"{count} x {collective.axis} {collective.ranks}" if count > 1 else f"{collective.axis} {collective.ranks}",
        f"{collective.size:,}",
    ]
    cells += [f"{row.last_size:,}"] if short else []
    cells.append(f"{collective.count:,}")
    if timed:
        cells += [
            row.price.algorithm if row.price else "-",
            _ms(row.price.seconds if row.price else None),
            _ms(row.step_seconds),
        ]
    return [*cells, collective.what, collective.source]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.3f}"


def _tail(sizing: TrainingSize) -> Iterator[str]:
    link = sizing.request.link
    moved = sum(row.collective.step_bytes for row in sizing.rows)
    if not sizing.rows:
        yield "moves     nothing: one GPU"
    elif link and sizing.step_seconds is not None:
        yield (
            f"time      {_ms(sizing.step_seconds)} ms of communication per step on {link.text} "
            f"(latency {link.alpha * 1e6:g} us, {link.beta * 1e9:.4g} ns/byte{_headers(link)})"
        )
        yield "          collectives one after another, without overlap and computation; cost models of algorithms/"
    else:
        hint = "" if link else "; for the time: --link 100mbit,50us"
        yield f"moves     {moved:,} bytes per step in all rows, as S of nccl-tests{hint}"
    yield from _held(sizing.memory)
    if sizing.fit:
        yield from _fits(
            sizing.fit, sizing.request.layout, "" if sizing.memory.activations is not None else ", without activations"
        )


def _headers(link: link_price.Link) -> str:
    return (
        f": {link_fit.PAYLOAD:,} of {link_fit.FRAME:,} bytes of an Ethernet frame are data" if link.payload < 1 else ""
    )


def _held(memory: Memory) -> Iterator[str]:
    part = memory.per_parameter
    bytes_each = f"{part.weights} + {part.gradients} + {part.state}"
    activations = "not known" if memory.activations is None else f"{memory.activations:,}"
    yield (
        f"memory    {_gb(memory.total)} on the fullest GPU: weights {memory.weights:,} + gradients {memory.gradients:,} + "
        f"optimizer {memory.state:,} + activations {activations} bytes"
    )
    yield (
        f"          {memory.parameters:,} parameters on it, {bytes_each} bytes per parameter before "
        f"ZeRO (arXiv:1910.02054); activations: {memory.source}"
    )
    yield "          not included: the device's context, communication buffers, fragmentation"


def _fits(fit: Fit, layout: Layout, without: str) -> Iterator[str]:
    if fit.spare >= 0:
        yield f"fits      in {_gb(fit.limit)}: {_gb(fit.spare)} free{without}"
        return
    yield f"fits      not in {_gb(fit.limit)}: {_gb(-fit.spare)} missing{without}"
    if not fit.alternatives:
        yield f"          nothing fits on {layout.gpus} GPUs; use more GPUs, a smaller --batch, or --recompute full"
    for other, memory in fit.alternatives:
        yield f"          would fit: {options(other)} ({_gb(memory.total)})"


def options(layout: Layout) -> str:
    """Return the options that give a layout."""
    parts = [f"--strategy {layout.strategy}"]
    parts += [f"--zero {layout.zero}"] if layout.zero else []
    parts += [f"--{name} {size}" for name, size in (("tp", layout.tp), ("pp", layout.pp)) if size > 1]
    parts += ["--sequence-parallel"] if layout.sequence_parallel else []
    parts += [f"--recompute {layout.recompute}"] if layout.recompute != "none" else []
    return " ".join(parts)


def _gb(size: int) -> str:
    if abs(size) < 10**5:
        return f"{size:,} bytes"
    if abs(size) < 10**8:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e9:,.1f} GB"


def _row_document(row: Row) -> object:
    collective = row.collective
    return {
        "operation": collective.operation, "bytes": collective.size, "last_bytes": row.last_size, "count": collective.count,
        "dtype": collective.dtype,
        "axis": collective.axis, "groups": collective.groups, "what": collective.what, "formula": collective.source,
        "cost": None if row.price is None else {"algorithm": row.price.algorithm, "rounds": row.price.rounds,
                                                "volume": row.price.volume, "seconds": row.price.seconds},
    }  # fmt: skip


def _fit_document(fit: Fit) -> object:
    instead = [{"options": options(layout), "bytes": memory.total} for layout, memory in fit.alternatives]
    return {"limit": fit.limit, "fits": fit.spare >= 0, "spare": fit.spare, "instead": instead}
