"""What the hooks ask of an accelerator, and how they leave it. Nothing of snapshots is decided here."""
