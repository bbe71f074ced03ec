"""What a training script calls: attach(), Job, and whom a rank answers to. No copying of state, no files."""
