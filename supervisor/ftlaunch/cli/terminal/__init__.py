"""Terminal output, help, completion and detaching, with the commands `jobs`, `logs`, `attach` and `completion`."""
