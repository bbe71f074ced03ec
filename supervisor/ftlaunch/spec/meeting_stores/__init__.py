"""The services in which the nodes of a job can meet: one file for each, and the table of them all. Pure."""
