"""What the arguments of a codebook may be; read without torch."""

LARGEST_CODEBOOK = 2**15  # codes are uint8 or int16
MOST_TABLES = 2**8  # their numbers are uint8
SEARCHES = ("direction", "distance")
GROUPINGS = ("consecutive", "correlated")
