"""Learners that are taught and asked: classifier, confidence, lessons, and the file."""
