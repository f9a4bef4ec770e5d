"""A data set as a table of frames: rows, CSV, safe text, digests, folders of media.

And how a file becomes an image.
"""
