"""EasyCkpt's calls under EasyCkpt's names: a script only changes from where it imports them."""
