"""What a replay memory holds, and which images it keeps."""
