"""``crumb run``: learn a stream, write the run folder, print the accuracy after every experience."""

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings


def main(settings: RunSettings) -> None:
    """Refuse wrong settings before torch is imported, which takes seconds; then do the runs."""
    RunPlan.of(settings)
    from crumb_avalanche.runs.run import main

    main(settings)
