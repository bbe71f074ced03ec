"""Which nodes a job has, which place each of them takes, and what is known of lost ones. Nothing here is sent."""
