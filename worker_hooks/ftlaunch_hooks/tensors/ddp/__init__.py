"""What DistributedDataParallel keeps from step to step beside the parameters. No files, no state of a job."""
