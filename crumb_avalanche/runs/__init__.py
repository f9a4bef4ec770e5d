"""What ``crumb run`` does: plan, session, progress, and files of a run folder; the typed settings of all commands."""
