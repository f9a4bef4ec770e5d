"""Save and load trained learners."""
