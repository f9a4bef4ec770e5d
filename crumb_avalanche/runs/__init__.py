"""What ``crumb run`` does: plan, session, progress, and the files of a run folder; the settings of all commands."""
