"""From downloads to the layout of a data set: download, unpack, write its table, check what is missing."""
