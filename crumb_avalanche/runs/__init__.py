"""What ``crumb run`` does: settings, plan, session, progress, files of a run folder."""
