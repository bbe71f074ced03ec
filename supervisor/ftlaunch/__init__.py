"""The supervisor: launches the ranks of a training job, watches, judges, restarts and saves. Never imports torch.

What others may rely on: the commands `ftlaunch` and `ftctl` (`python -m ftlaunch` is the first of them) with their
options, the keys of a job spec, the exit codes, what a run dir holds (events.jsonl, logs, checkpoints, autopsies),
and what `--json` prints. The Python modules of this package are internal: they change from one version to the next
without notice. What a training script imports is `ftlaunch_hooks`.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
