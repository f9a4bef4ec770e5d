"""``crumb run``: learn a stream, print the accuracy after every experience, and write the run folder."""

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings


def main(settings: RunSettings) -> None:
    """Check the settings before importing torch, which takes seconds; then do the runs."""
    RunPlan.of(settings)
    from crumb_avalanche.runs.run import main

    main(settings)
