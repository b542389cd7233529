"""``python -m orchestrator.cli``"""

from ..__main__ import main

main()
