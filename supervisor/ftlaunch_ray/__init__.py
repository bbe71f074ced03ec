"""Runs a job on a Ray cluster: Ray places one `ftlaunch` agent on each node, and replaces agents that are lost.

    import ftlaunch_ray

    code = ftlaunch_ray.run(["--nnodes", "2", "--spare", "1", "train.py"])

`python -m ftlaunch_ray` takes the same words on a command line. The package needs the extra `ray`.
"""

from ftlaunch_ray.command import run

__all__ = ["run"]
