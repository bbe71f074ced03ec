"""What supervisor and ranks share: names, memory pages, checkpoint files. It imports neither of them, and no torch.

All of it is internal: programs read a job through `ftctl` and its files, and train through `ftlaunch_hooks`.
"""

__all__: list[str] = []
