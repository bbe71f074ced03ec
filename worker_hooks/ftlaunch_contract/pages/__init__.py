"""The memory page of a rank and the records that lie in it. Nothing here touches a checkpoint."""
