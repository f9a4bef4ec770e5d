"""Fixtures that tests of several rooms share."""

from learner_fixtures import make, network, served  # noqa: F401
