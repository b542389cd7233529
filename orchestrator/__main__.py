"""The program ``ccbed``; ``python -m orchestrator`` is the same."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

#: Of model/errors.py, which is not loaded yet. Nothing else may end this program: 1 is the code of a failed verdict.
_INTERRUPTED, _INTERNAL = 130, 4
#: Objects that a process makes before the garbage collector runs: more than a short run makes, and few of them are in cycles.
_GC_THRESHOLD = 100_000


def main() -> NoReturn:
    """Load and run the command line, and exit without the interpreter's shutdown: all files are closed by then."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from .cli import main as command_line

        code = command_line.main()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:  # noqa: BLE001
        code = 0 if isinstance(error, SystemExit) and not error.code else _INTERNAL
        text = f"error: internal error of ccbed: {type(error).__name__}: {' '.join(str(error).split())}\n"
        with suppress(OSError, ValueError):
            sys.stderr.write(text if code else "")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
