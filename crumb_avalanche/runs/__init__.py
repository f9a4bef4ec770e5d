"""One run, from settings to folder."""
