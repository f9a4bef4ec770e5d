"""Extract frames from video files."""
