"""Which parts of an image may be looked at, as numbers; read without torch."""

MOST_LOOKS = 3
LEAST_SHARE = 0.1  # of the sides of an image
