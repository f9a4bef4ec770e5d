"""Tables, pictures and HTML pages of finished runs and of a learner's answers."""
