"""What people teach and ask: network, classes, images, clips, lessons, answers, unknowns, files (runs' too), server."""
