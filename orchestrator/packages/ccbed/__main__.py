"""The program ``ccbed`` as it is installed: it loads its own package orchestrator, also where PYTHONPATH has another one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """orchestrator lies beside this package or, in a checkout, above it."""
    own = Path(__file__).resolve().parents
    root = own[1] if (own[1] / "orchestrator" / "__main__.py").is_file() else own[3]
    sys.path.insert(0, str(root))
    from orchestrator import __main__ as program

    sys.path.remove(str(root))
    program.main()


if __name__ == "__main__":
    main()
