"""What ``crumb run`` does: settings, plan, session, progress, and the files of a run folder."""
