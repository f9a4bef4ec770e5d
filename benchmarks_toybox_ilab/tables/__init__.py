"""Data sets as tables of frames, and the files they are made from."""
