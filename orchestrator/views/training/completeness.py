"""Judges what an attempt resumed with, part by part: each is compared with the same moment of the job in an earlier attempt."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ...model import watch
from ...model.frozen import dataclass, replace
from ...model.run import Twin
from ...model.verdict import Verdict
from .attempts import Attempt, Process, add
from .job_checkpoints import Write
from .kept import drawn_from
from .kept_lists import AGAIN, are_as_in, distance, modules, of_script
from .redone_steps import Replay, replays, share
from .resumption import APART, Lineage, Resumption, Step
from .rounding import SHARE
from .state_parts import COMPARE, LIST, NOTHING, ORDER, PARTS, RARE, Pair, Result, by_batches, drawn, shown

#: Part -> its name in a state and in the contents of a checkpoint.
_SAVED = {"buffers": "buffers", "learning rate": "lr", "scheduler": "scheduler", "scaler": "scaler"}

#: What a trial may accept -> the part that may then be lost.
ACCEPTABLE = {"rng": "RNG", "data-position": "data position", "ema": "copies of the model"}
DRAWN = "drawn from random states that were lost"

#: States of an optimizer that are a number for each parameter: a rank without elements of one may not have it.
SCALARS = ("step", "mu_product", "eta", "mu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A part of the state of one rank in one attempt: the result and its reason; ``keys``: of the saved state, what was compared."""

    part: str
    result: Result
    text: str = ""
    who: str = ""
    keys: frozenset[str] = frozenset()


def may_lose(accept: Iterable[str]) -> frozenset[str]:
    """The parts whose loss a trial accepts."""
    return frozenset(ACCEPTABLE[name] for name in accept)


def rows(lines: Lineage, resumption: Resumption, twin: Twin | None = None) -> tuple[Row, ...]:
    """The rows of every rank. Not for an attempt that began from scratch: nothing was resumed.

    ``twin``: the undisturbed run, where no state of this run decides.
    """
    repeated = replays(lines, resumption.attempt)
    step = resumption.step
    is_resized = step is not None and not lines.have_same_sizes(lines.attempts[0], resumption.attempt, step + 1)
    sizes = f"world size {resumption.attempt.world} instead of {lines.attempts[0].world}" if is_resized else ""
    return tuple(
        _by_twin(row, process, step, twin, sizes)
        for process in resumption.attempt.ranks.values()
        for row in _rank_rows(lines, resumption, process, tuple(r for r in repeated if r.rank == process.name))
    )


def _of_other_step(lines: Lineage, resumption: Resumption, process: Process, start: watch.State) -> str:
    """Return how an optimizer that is not that of the weights' step is named, if the step that it is of was recorded."""
    steps = [
        lines.bases[old.index] + n
        for old in lines.earlier(resumption.attempt)
        for other in old.ranks.values()
        for n, state in other.states.items()
        if start.optimizer and state.optimizer == start.optimizer and old.index in lines.bases
    ]
    path = next((f" ({x.path})" for x in process.loads if any(n.startswith("optimizer.") for n in x.contents)), "")
    return f"is that of step {max(steps)}{path}, the weights are those of step {resumption.step}" if steps else ""


def _by_twin(row: Row, process: Process, step: Step | None, twin: Twin | None, sizes: str) -> Row:
    """A part that is equal to that of the undisturbed run after the same step is whole. A difference shows nothing, but for rates.

    Another number of ranks (``sizes``) shares data in another way, and has other random generators.
    """
    if sizes and row.part in ("RNG", "data position") and row.result == "unknown":
        return replace(row, result="not applicable", text=f"not comparable with {sizes}")
    if twin is None or step is None:
        return row
    digests, start, after = twin.digests.get(str(process.rank), {}), process.states.get(0), process.states.get(1)
    if row.part in ("learning rate", "scheduler") and row.result in ("pass", "unknown"):
        return _by_rates(row, process, step, digests)
    if row.result != "unknown" or start is None:
        return row
    if judge := _OF_PARTS.get(row.part):
        return judge(row, process, step, twin)
    came_out = bool(after and after.weights) and digests.get(f"weights@{step + 1}") == (after and after.weights)
    if row.part == "accumulated gradients" and came_out:
        return replace(row, result="pass", text=f"step {step + 1} came out as in the reference run")
    own: Mapping[str, str | None] = {"weights": start.weights} if row.part == "weights" else {}
    if row.part == "optimizer" and start.optimizer:
        own = {f"optimizer.{name}": digest for name, digest in start.optimizer.items()}
    known = {name.rpartition("@")[0] for name in digests if name.endswith(f"@{step}") and name.startswith(row.part)}
    if own and known == set(own) and all(value and digests[f"{name}@{step}"] == value for name, value in own.items()):
        return replace(row, result="pass", text=f"equal to that of the reference run after step {step}")
    return row


def _by_generators(row: Row, process: Process, step: Step, twin: Twin) -> Row:
    """Random states are whole if all that steps draw from are those of the undisturbed run after the same step: the rank ended with
    its save, before its next step began. A difference shows nothing.
    """
    own, known = process.states[0].rng or {}, twin.generators.get(str(process.rank), {})
    drawn = drawn_from(known)
    is_equal = all(own.get(name) is not None and own[name] == known.get(f"{name}@{step}") for name in drawn)
    if not drawn or not is_equal:
        return row
    return replace(row, result="pass", text=f"equal to those of the reference run after step {step}")


def _by_lists(row: Row, process: Process, step: Step, twin: Twin) -> Row:
    """Copies in lists hold if a later step has those of the undisturbed run: the script makes them again every few steps."""
    if not row.text.startswith(LIST):
        return row
    lists, digests = twin.lists.get(str(process.rank), {}), twin.digests.get(str(process.rank), {})
    start, *later = ([*map(int, digests.get(f"sums@{n}", "").split())] for n in (step, *map(int, lists)))
    for n, sums in zip(lists, later, strict=True):
        state = process.states.get(int(n) - step)
        if state is None or int(n) <= step:
            continue
        moved = share(start, sums, state.sums)
        rounding = distance(sums, state.sums) or None if moved is not None and moved <= SHARE else None
        if are_as_in(of_script(state), lists[n], rounding):
            return replace(row, result="pass", text=f"{LIST} is that of the reference run at step {n}")
    return row


def _by_rates(row: Row, process: Process, step: Step, twin: Mapping[str, str]) -> Row:
    """Judge by the learning rates of all steps that both did after ``step``."""
    own = {step + n: " ".join(map(str, rates)) for n, rates in sorted(process.rates.items())}
    common = [(n, rates, twin[f"lr@{n}"]) for n, rates in own.items() if f"lr@{n}" in twin]
    changed = next(((n, rates, other) for n, rates, other in common if rates != other), None)
    if changed is not None:
        n, rates, other = changed
        text = f"of step {n + 1} is {shown(rates.split())}, in the reference run {shown(other.split())}"
        return replace(row, result="fail", text=text)
    is_known = row.result == "unknown" and row.part == "scheduler" and len({rates for _, rates, _ in common}) > 1
    if is_known:
        return replace(
            row, result="pass", text=f"the learning rates of {len(common)} steps are those of the reference run"
        )
    return row


def _by_batches(row: Row, process: Process, step: Step, twin: Twin) -> Row:
    """Judge by the last batch of each later step, as where no step was executed again; without batches by the weights after each."""
    own = {f"batch@{step + n}": made.batches[-1] for n, made in sorted(process.steps.full.items()) if made.batches}
    digests = twin.digests.get(str(process.rank), {})
    common = [(name, key == digests[name]) for name, key in own.items() if key and name in digests]
    changed = next((name.partition("@")[2] for name, is_equal in common if not is_equal), None)
    if changed is not None:
        return replace(row, text=f"step {changed} has another batch than in the reference run")
    if common:
        return replace(row, result="pass", text=f"{len(common)} batches are those of the reference run")
    start = process.states[0].weights
    weights = {f"weights@{step + n}": s.weights for n, s in process.states.items() if s.weights not in (None, start)}
    equal = [digests[name] == digest for name, digest in weights.items() if name in digests]
    is_same = bool(equal) and all(equal)
    return replace(row, result="pass", text=f"{len(equal)} steps came out as in the reference run") if is_same else row


_OF_PARTS = {"RNG": _by_generators, "data position": _by_batches, "copies of the model": _by_lists}


def comparable(parts: dict[str, Row], differing: Sequence[tuple[int, str, str]]) -> dict[str, Row]:
    """The parts without failures by redone steps where the job does not repeat its own: ``differing``, of which parts of a step."""
    of_batches = ("step ",) if {"batch", "inputs"} & {part for _, _, part in differing} else ()
    heads = ("the loss", "the gradients", *of_batches)
    excused = (
        [part for part, row in parts.items() if row.result == "fail" and row.text.startswith(heads)]
        if differing
        else []
    )
    return parts | {p: replace(parts[p], result="not applicable", text=incomparable(differing)) for p in excused}


def or_skipped(verdict: Verdict, reason: str) -> Verdict:
    """The verdict, which is no pass where there is a reason why nothing could be compared."""
    is_skipped = bool(reason) and verdict.outcome == "pass"
    return Verdict(check=verdict.check, outcome="skipped", text=reason) if is_skipped else verdict


def incomparable(differing: Sequence[tuple[int, str, str]]) -> str:
    if not differing:
        return ""
    step, rank, part = differing[0]
    verb = "differ" if part == "weights" else "differs"
    text = f"rank {rank}: {part} of step {step} {verb} from the reference run's before anything was lost"
    return f"not comparable, because the job does not repeat its own steps: {text}"


def drawn_data(parts: dict[str, Row], repeated: Sequence[Replay]) -> dict[str, Row]:
    """The parts, where random states are lost: data that the job draws from them are lost as well."""
    first = next((replay for replay in repeated if replay.is_first and replay.inputs is False), None)
    row, is_lost = parts.get("data position"), parts["RNG"].result == "fail" if "RNG" in parts else False
    if first is None or row is None or row.result != "unknown" or not is_lost or parts["weights"].result != "pass":
        return parts
    near = [replay.near for replay in repeated if replay.near is not None]
    if near and all(near):
        text = f"the inputs of {len(near)} redone steps are those that were due, with other noise"
        return parts | {row.part: replace(row, result="pass", text=text)}
    text = f"step {first.step} has other inputs than before, {DRAWN} (noise, not data? --accept rng,data-position)"
    return parts | {row.part: replace(row, result="fail", text=text)}


def worst(items: tuple[Row, ...]) -> dict[str, Row]:
    return {
        part: min(matching, key=lambda row: ORDER.index(row.result))
        for part in PARTS
        if (matching := [row for row in items if row.part == part])
    }


def _rank_rows(lines: Lineage, resumption: Resumption, process: Process, repeated: tuple[Replay, ...]) -> Iterator[Row]:
    who = f"{resumption.attempt.name}: {process.name}"
    start = process.states.get(0)
    if resumption.step is None or start is None or not start.full:
        reason = (
            "from which step it resumed is not known" if start and start.full else "its first state was not recorded"
        )
        yield from (Row(part=part, result="unknown", text=reason, who=who) for part in PARTS)
        return
    own, before = _moment(lines, resumption.attempt, process, resumption.step)
    if before is None:
        yield from _by_contents(lines, resumption, process, start, repeated, who)
        return
    namesake = _namesake(lines, resumption, process)
    known = (*lines.earlier(resumption.attempt), resumption.attempt)
    every = tuple(attempt.ranks[process.rank] for attempt in known if process.rank in attempt.ranks)
    pair = Pair(
        process=process, start=start, before=before, own=own, every=every, replays=repeated, namesake=namesake,
        saved=_saved_parts(resumption), unobserved=_unobserved_copy(resumption, before, start), accumulated=_accumulated(resumption),
    )  # fmt: skip
    results = {part: COMPARE[part](pair) for part in PARTS}
    apart = next((r.failure.partition(APART)[2] for r in resumption.ranks if r.rank == process.rank), "")
    if results["weights"][0] == "fail" and apart:
        results["weights"] = ("fail", f"of other steps:{apart}")
    if (
        results["optimizer"][0] == "fail"
        and start.optimizer != before.optimizer
        and (text := _of_other_step(lines, resumption, process, start))
    ):
        results["optimizer"] = ("fail", text)
    of_rate = [results[part][0] for part in ("optimizer", "scheduler", "learning rate")]
    if start.optimizer != before.optimizer and start.scheduler and of_rate == ["fail", "pass", "fail"]:
        text = f"follows from the optimizer, whose rate was not restored: {results['learning rate'][1]}"
        results |= dict.fromkeys(("learning rate", "scheduler"), ("not applicable", text))
    is_explained = any(result == "fail" for part, (result, _) in results.items() if part != "other state")
    for part, (result, text) in results.items():
        if part not in RARE or not (result == "not applicable" or (is_explained and part == "other state")):
            yield Row(part=part, result=result, text=text, who=who)


def _namesake(lines: Lineage, resumption: Resumption, process: Process) -> watch.State | None:
    """The state of the same rank if the attempt before had another number of ranks."""
    old = lines.attempts[resumption.attempt.index - 1]
    n, other = lines.n_of(resumption.step or 0, old), old.ranks.get(process.rank)
    return other.states.get(n or 0) if other and old.world != resumption.attempt.world else None


def _moment(
    lines: Lineage, attempt: Attempt, process: Process, step: Step
) -> tuple[watch.State | None, watch.State | None]:
    """(its own state, the state with the parts that a replica recorded) after ``step``.

    Of the newest earlier attempt of which a rank recorded all parts. A rank that saves nothing does not know that another saves.
    """
    for old in reversed(lines.earlier(attempt)):
        n = lines.n_of(step, old)
        if n is not None and not lines.have_same_sizes(old, attempt, step):
            continue
        states = (
            {p.rank: p.states[n] for p in old.ranks.values() if n in p.states and _is_replica(p, process, old)}
            if n is not None
            else {}
        )
        full = next(
            (state for rank, state in sorted(states.items(), key=lambda item: item[0] != process.rank) if state.full),
            None,
        )
        if full is not None:
            own = old.ranks.get(process.rank) if old.world == attempt.world else None
            return _own_state(own, states.get(process.rank) if own else None, n or 0), full
    return None, None


def _is_replica(other: Process, process: Process, old: Attempt) -> bool:
    """Return whether ``other`` held in ``old`` what the rank of ``process`` did. Stages of a pipeline differ as they begin."""
    own = old.ranks.get(process.rank)
    starts = [p.states[0].weights for p in (own, other) if p is not None and 0 in p.states]
    differ = len({weights for weights in starts if weights is not None}) > 1
    return other.holds_same_as(process) and (other.rank == process.rank or other.is_sharded or not differ)


def _own_state(process: Process | None, state: watch.State | None, n: int) -> watch.State | None:
    """The state, or what is known of it by the fingerprints of the generators."""
    if state is not None or process is None or n not in process.rngs:
        return state
    return watch.State(t=0.0, n=n, rng=process.rngs[n])


def _writes(resumption: Resumption) -> tuple[Write, ...]:
    """Return the writes of the checkpoint that it resumed from, if that is known."""
    checkpoint = resumption.checkpoint if resumption.newest == resumption.step else None
    return checkpoint.writes if checkpoint else ()


def _saved_parts(resumption: Resumption) -> frozenset[str]:
    """The random generators, and the digests of tensors, that the checkpoint holds: the job itself counts them as its state."""
    contents = [write.saved.contents for write in _writes(resumption) if write.saved]
    generators = {str(name) for saved in contents for name in saved.get("rng") or ()}
    return frozenset(generators | {str(v) for saved in contents for k, v in saved.items() if k.startswith("tensors.")})


def saved_copies(resumption: Resumption) -> frozenset[str]:
    """The keys of copies of the model or of a part of it, such as averages, in the checkpoint that it resumed from."""
    contents = [write.saved.contents for write in _writes(resumption) if write.saved]
    files = (process.file for process in resumption.attempt.ranks.values())
    names = {name for file in files for owner in file.of(watch.Owner) for name in owner.parameters or ()}
    keys = {str(key) for saved in contents for key in saved.get("copies") or ()}
    return frozenset(keys.union(*(_parts_of_models(saved, names) for saved in contents)))


def _parts_of_models(saved: Mapping[str, object], names: Collection[str]) -> set[str]:
    """The keys below which a checkpoint has several tensors, all with the names of trained parameters."""
    held: dict[str, list[str]] = {}
    for path in (name.removeprefix("tensors.") for name in saved if name.startswith("tensors.")):
        head = f"norms.tensors.{path}."
        held[path] = [key.removeprefix(head) for key in saved if key.startswith(head)]
    ends = {name[at:] for name in names for at in (0, *(dot.end() for dot in re.finditer(r"\.", name)))}
    return {path for path, own in held.items() if path and len(own) > 1 and ends.issuperset(own)}


def _unobserved_copy(resumption: Resumption, *states: watch.State) -> str:
    """The key of a copy of the model in the checkpoint that no state has; behind the digests of lists stand sums."""
    contents = [write.saved.contents for write in _writes(resumption) if write.saved]
    copies = (item for state in states for item in state.copies.items())
    known = {digest.split()[0] for key, digest in copies if digest and key != AGAIN}
    keys = (
        str(key) for saved in contents for key in saved.get("copies") or () if saved.get(f"tensors.{key}") not in known
    )
    return next(keys, "")


def _begins_whole(process: Process) -> bool:
    """Return whether its first step has as many backward passes as the next one: an accumulation began anew."""
    first, second = process.steps.get(1), process.steps.get(2)
    return first is not None and second is not None and first.passes >= second.passes


def _accumulated(resumption: Resumption) -> tuple[int, str]:
    """Backward passes of a step that was under way as the checkpoint was saved, and the key of their gradients in it."""
    writes = _writes(resumption)
    keys = (str(key) for write in writes if write.saved for key in write.saved.contents.get("gradients") or ())
    return max((write.save.passes for write in writes), default=0), next(keys, "")


def _by_contents(
    lines: Lineage, resumption: Resumption, process: Process, start: watch.State, repeated: tuple[Replay, ...], who: str
) -> Iterator[Row]:
    """Judge by the contents of the checkpoint, and by the steps that were executed again, where no state of that moment is recorded."""
    reason = f"no earlier start recorded the whole state after step {resumption.step}"
    checkpoint = resumption.checkpoint if resumption.newest == resumption.step else None
    contents = checkpoint.contents if checkpoint else {}
    for part in PARTS:
        if part == "other state" or (part == "copies of the model" and not modules(start.copies)):
            continue
        if part == "accumulated gradients" and (not _accumulated(resumption)[0] or _begins_whole(process)):
            continue
        row = Row(part=part, result="unknown", text=reason, who=who)
        if part == "weights" and checkpoint and not process.is_sharded and start.weights in checkpoint.weights:
            row = replace(row, result="pass", text="equal to those in the checkpoint")
        elif part == "optimizer" and not process.is_sharded:
            row = _saved_optimizer(start, contents, row)
        elif part in ("weights", "optimizer"):
            row = _by_shards(lines, resumption, process, row)
        elif part in _SAVED:
            row = _saved_value(part, start, contents, row)
        elif part == "data position":
            result, text = by_batches(repeated)
            row = replace(row, result=result, text=text or reason)
        elif part == "RNG" and _is_never_drawn(lines, resumption.attempt, process):
            row = replace(row, result="not applicable", text="steps do not draw from it")
        yield row


def _by_shards(lines: Lineage, resumption: Resumption, process: Process, row: Row) -> Row:
    """Shards of another number of ranks add up to the same weights and states. Of states whose weights do not, nothing is known."""
    weights = resumption.attempt.total(0, process)
    for old in reversed(lines.earlier(resumption.attempt)):
        n = lines.n_of(resumption.step or 0, old)
        if n is None or weights is None or old.total(n) != weights:
            continue
        text = f"the shards add up to those of {old.world} ranks after step {resumption.step}"
        if row.part == "weights":
            return replace(row, result="pass", text=text)
        shards = resumption.attempt.shards(0, process), old.shards(n)
        own, other = map(_optimizer_total, shards)
        counters, before = ({state.counter for state in states} - {None} for states in shards)
        if own is None or not other or counters != before:  # a counter that ranks do not share is in no total
            return row
        names = [name for name in other if name in own or name not in SCALARS]
        changed = next((name for name in names if own.get(name) != other[name]), None)
        if changed:
            return replace(row, result="fail", text=f"{changed} of all shards differs from that of {old.world} ranks")
        return replace(row, result="pass", text=text)
    return row


def _optimizer_total(states: Sequence[watch.State]) -> dict[str, str | None] | None:
    """Name -> the sum of the digests of all shards, or the digest that all of them have. Numbers that differ by rank do not add up."""
    known = [state.optimizer for state in states if state.optimizer is not None]
    if len(known) < len(states) or any(digest is None for own in known for digest in own.values()):
        return None
    names = sorted({name for own in known for name in own})
    digests = {name: [digest for own in known if (digest := own.get(name)) is not None] for name in names}
    totals = {name: values[0] if len({*values}) == 1 else add(values) for name, values in digests.items()}
    return {name: total for name, total in totals.items() if name not in SCALARS or len({*digests[name]}) == 1}


def _is_never_drawn(lines: Lineage, attempt: Attempt, process: Process) -> bool:
    """Return whether no step of the rank, in this attempt or the one before, drew from a generator, as far as that is known."""
    old = next((a.ranks.get(process.rank) for a in reversed(lines.earlier(attempt)) if a.world == attempt.world), None)
    known = [item for item in (old, process) if item is not None]
    names = {name for item in known for prints in item.rngs.values() for name in prints}
    return old is not None and bool(names) and all(drawn(name, known) == 0 for name in names)


def _saved_value(part: str, start: watch.State, contents: Mapping[str, object], row: Row) -> Row:
    """Equal to what was saved, or absent on both sides. A difference may be due to the moment of the save: unknown."""
    name = _SAVED[part]
    own, saved = getattr(start, name), contents.get(name)
    if not saved and (not own or own == NOTHING):
        return replace(row, result="not applicable", text="neither saved nor in use")
    same = json.dumps(own) == json.dumps(saved)
    return replace(row, result="pass", text="equal to that in the checkpoint") if same else row


def _saved_optimizer(start: watch.State, contents: Mapping[str, object], row: Row) -> Row:
    saved = {
        name.removeprefix("optimizer."): digest for name, digest in contents.items() if name.startswith("optimizer.")
    }
    if start.optimizer is None:
        return row
    own = dict(start.optimizer)
    shared = sorted(name for name in saved if name in own and saved[name] and own[name])
    if saved and not own:
        return replace(row, result="fail", text=f"has no {min(saved)}")
    if shared and len(shared) == len(own) and all(saved[name] == own[name] for name in shared):
        return replace(row, result="pass", text="equal to that in the checkpoint")
    return row
