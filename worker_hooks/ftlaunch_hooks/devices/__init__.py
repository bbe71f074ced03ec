"""What the hooks ask of an accelerator. Nothing of snapshots is decided here."""
