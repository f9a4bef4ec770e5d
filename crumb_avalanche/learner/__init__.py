"""A learner that people teach and ask: images, clips, lessons, answers, evidence, unknowns, files, export, server."""
