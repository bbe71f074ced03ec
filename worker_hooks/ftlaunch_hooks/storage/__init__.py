"""Reading saved tensors, and torch's StorageReader and StorageWriter. No snapshots in memory."""
