"""Serve a learner: the page and its API, access, MQTT, and a model hub."""
