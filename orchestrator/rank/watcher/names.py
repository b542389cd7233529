"""Names of parameters: those of the modules that hold them, without the prefixes of wrappers."""

from __future__ import annotations

import re

_PREFIXES = re.compile(r"(?:(?<=^)|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def normalise(name: str) -> str:
    """``module._orig_mod.fc.weight`` -> ``fc.weight``."""
    return _PREFIXES.sub("", name)
