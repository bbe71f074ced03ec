"""The memory page of a rank and the records that lie in it. No module here reads or writes a checkpoint."""
