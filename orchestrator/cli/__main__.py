"""``python -m orchestrator.cli``"""

from .main import main

main()
