"""The step owner as readers of saved objects need it: names in the order of each optimizer, and which of them this rank adds."""

from __future__ import annotations

import weakref

from .. import digest, owner, sharding
from . import contents, fused_names, parts


def describe(known: owner.Owner, buffers: tuple[str, ...]) -> contents.Owner:
    """Names, addresses and shapes of the owner's parameters. ``buffers``: names of those that are saved with the model."""
    held_by = {id(parameter): held for parameter, held in known.parameters()}
    pointers = tuple(int(digest.local(parameter).data_ptr()) for parameter, held in known.parameters() for _ in held)
    reference = weakref.ref(known)
    counted = {name for name, part in known.parts.items() if sharding.counts(part, known.shards, known.rank)}
    return contents.Owner(
        parameters=tuple(known.parts),
        buffers=buffers,
        pointers=pointers,
        shapes=tuple(part.shape for part in known.parts.values()),
        optimizers=tuple(
            tuple(part.name for parameter in owner.parameters_of(optimizer) for part in held_by.get(id(parameter), ()))
            for optimizer in known.owning
        ),
        counted=frozenset(counted),
        scalars=frozenset(name for name in counted if known.parts[name].holds_first()),
        gradients=lambda: _gradients(reference()),
        live=lambda: _live(reference()),
    )


def _live(known: owner.Owner | None) -> fused_names.Tensors:
    return {of[0].name: x for x, of in known.parameters() if len(of) == 1 and not of[0].select} if known else {}


def _gradients(known: owner.Owner | None) -> str | None:
    """The digest of the gradients; None if a parameter has none, or where ranks hold shards."""
    held = {of[0].name: x.grad for x, of in known.parameters() if of} if known is not None and not known.shards else {}
    digested = parts.digest_all((name, item) for name, item in held.items() if item is not None)
    return parts.total(digested)[0] if held and len(digested) == len(held) else None
