"""Offers attach() and Job to training scripts, and decides with a rank's coordinator. No copying of state, no files."""
