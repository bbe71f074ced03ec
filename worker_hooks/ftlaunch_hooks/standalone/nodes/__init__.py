"""The first ranks of several nodes among themselves, over torch.distributed. Nothing here looks into another node."""
