"""``python -m crumb_avalanche.cli`` is ``crumb``."""

from crumb_avalanche.cli import main

raise SystemExit(main())
