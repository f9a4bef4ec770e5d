"""From downloads to the layout of a data set: download, unpack, check what is missing."""
