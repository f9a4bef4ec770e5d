"""Run ``crumb`` as ``python -m crumb_avalanche.cli``."""

from crumb_avalanche.cli import main

raise SystemExit(main())
