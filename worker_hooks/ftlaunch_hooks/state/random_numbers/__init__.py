"""Random number generators: those of the process, and those that a script has made itself."""
