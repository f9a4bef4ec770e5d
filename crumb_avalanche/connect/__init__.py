"""Where the images already are: adapters between a learner and other programs, each with an extra of its own."""
