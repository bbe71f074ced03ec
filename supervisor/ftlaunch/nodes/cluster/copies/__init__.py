"""What the nodes' memory holds of the job's state: snapshots of their own ranks, and copies for each other."""
