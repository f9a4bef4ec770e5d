"""From downloads to frames."""
