"""What a person keeps of a run and uses: the learner file."""
