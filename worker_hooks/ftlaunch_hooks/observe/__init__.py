"""Observes training: steps, losses, replicas. Nothing here changes the state of training."""
