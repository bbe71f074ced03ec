"""Kits that tests share: jobs, ranks, checkpoints, snapshots, disks, fakes and a simulation."""
