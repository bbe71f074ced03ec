"""EasyCkpt's scripts import this module for what its import does; here load_checkpoint() does it all."""
