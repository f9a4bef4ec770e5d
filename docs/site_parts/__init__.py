"""Parts of the documentation site that are made when it is built: tables of recorded runs, commands, reference."""
