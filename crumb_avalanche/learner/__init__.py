"""What people teach and ask: its network, images, clips, lessons, answers, records, unknowns, files, export, server."""
