"""A learner that people teach and ask: images, clips, lessons, answers, evidence, files, export, server."""
