"""What the memory of the nodes holds of the job's state: of their own ranks, and copies for each other."""
