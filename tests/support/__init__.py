"""What tests share: kits that make jobs, ranks, checkpoints, snapshots and disks."""
