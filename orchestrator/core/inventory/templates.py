"""Fill in templates in variables of an inventory: `{{ ansible_host }}` -> the value, with Jinja, without Ansible's lookups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A template may name a variable that is itself a template; deeper nesting is treated as a cycle.
_MAX_DEPTH = 8


def has_template(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_template(item) for item in value.values())
    if isinstance(value, list):
        return any(has_template(item) for item in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def fill(value: Any, context: Mapping[str, Any]) -> Any:
    """``value`` with all templates in it filled in; numbers stay numbers. Raises ValueError."""
    if isinstance(value, dict):
        return {key: fill(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, context) for item in value]
    result: Any = value
    for _ in range(_MAX_DEPTH):
        if not has_template(result):
            return result
        result = _render(result, context) if isinstance(result, str) else fill(result, context)
    raise ValueError("a template that refers to itself")


def _render(text: str, context: Mapping[str, Any]) -> Any:
    import jinja2
    from jinja2 import nativetypes, sandbox

    class Environment(sandbox.SandboxedEnvironment, nativetypes.NativeEnvironment):
        """Values keep their types, and templates cannot access the interpreter."""

    try:
        rendered: Any = Environment(undefined=jinja2.StrictUndefined).from_string(text).render(**context)
        if isinstance(rendered, jinja2.Undefined):
            str(rendered)  # raises an error that names the undefined variable
        return rendered
    except jinja2.TemplateError as error:
        raise ValueError(f"a template that cannot be rendered: {error.message}; write the value") from None
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"a template that cannot be rendered: {error}; write the value") from None
