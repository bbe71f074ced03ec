"""What the supervisor and the ranks share: names, memory pages and checkpoint files.

The package imports neither the supervisor nor the hooks, and no torch. All of it is internal: other programs read a
job through `ftctl` and the job's files, and train through `ftlaunch_hooks`.
"""

__all__: list[str] = []
