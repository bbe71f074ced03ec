"""Ray as the engine of a job: it places the agents of `ftlaunch` on the nodes of its cluster, and replaces them.

    import ftlaunch_ray

    code = ftlaunch_ray.run(["--nnodes", "2", "--spare", "1", "train.py"])

`python -m ftlaunch_ray` is the same as a command. Needs the extra `ray`.
"""

from ftlaunch_ray.command import run

__all__ = ["run"]
