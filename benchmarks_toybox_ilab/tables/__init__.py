"""A data set as a table of frames: rows, CSV, folders on disk, and how a file becomes an image."""
