"""Templates in variables of an inventory: `{{ ansible_host }}` -> the value, by Jinja alone, without Ansible's lookups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A template may name a variable that is a template; more than this is a circle.
_DEPTH = 8


def has(value: Any) -> bool:
    """Whether there is anything to fill in."""
    if isinstance(value, dict):
        return any(has(item) for item in value.values())
    if isinstance(value, list):
        return any(has(item) for item in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def fill(value: Any, context: Mapping[str, Any]) -> Any:
    """``value`` with all templates in it filled in; numbers stay numbers. Raises ValueError."""
    if isinstance(value, dict):
        return {key: fill(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, context) for item in value]
    found: Any = value
    for _ in range(_DEPTH):
        if not has(found):
            return found
        found = _render(found, context) if isinstance(found, str) else fill(found, context)
    raise ValueError("a template that leads back to itself")


def _render(text: str, context: Mapping[str, Any]) -> Any:
    import jinja2
    from jinja2 import nativetypes, sandbox

    class Environment(sandbox.SandboxedEnvironment, nativetypes.NativeEnvironment):
        """Types stay what they are, and no template reaches into the interpreter."""

    try:
        found: Any = Environment(undefined=jinja2.StrictUndefined).from_string(text).render(**context)
        if isinstance(found, jinja2.Undefined):
            str(found)  # raises: says what is undefined
        return found
    except jinja2.TemplateError as error:
        raise ValueError(f"a template that cannot be filled in here: {error.message}; write the value") from None
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"a template that cannot be filled in here: {error}; write the value") from None
