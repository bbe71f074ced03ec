"""How many nodes a job has, and where a node meets the others. Pure: nothing here asks the network or a scheduler."""
