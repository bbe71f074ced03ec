"""Jobs of several machines: agents, their head, who claims to be the head, copies of snapshots. Built on the core."""
