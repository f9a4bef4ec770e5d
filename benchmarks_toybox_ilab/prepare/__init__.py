"""From downloads to the layout of a data set.

Download, unpack, write its table, and check what is missing.
"""
