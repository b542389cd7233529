"""The program ``ccbed``; ``python -m orchestrator`` is the same."""

from __future__ import annotations

import os
from typing import NoReturn


def main() -> NoReturn:
    """Load the command line and run it. Ctrl-C while it loads is no traceback."""
    try:
        from .cli import main as command_line
    except KeyboardInterrupt:
        os._exit(130)
    command_line.main()


if __name__ == "__main__":
    main()
