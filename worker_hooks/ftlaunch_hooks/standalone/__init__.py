"""The ranks of a node among themselves, where no supervisor watches. Nothing here runs under a supervisor."""
