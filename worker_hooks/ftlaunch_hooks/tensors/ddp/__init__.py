"""What DistributedDataParallel keeps from step to step besides the parameters. No files, no state of a job."""
