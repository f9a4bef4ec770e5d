"""The data sets, one file each."""
