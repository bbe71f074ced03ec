"""Empty: EasyCkpt's scripts import a module of this name for its side effects, which load_checkpoint() has here."""
