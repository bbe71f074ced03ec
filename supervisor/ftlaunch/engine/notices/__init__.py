"""Notices that this machine will be taken away: how one is looked for. What follows from it is not decided here."""
