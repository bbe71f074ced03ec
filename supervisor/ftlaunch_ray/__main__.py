"""`python -m ftlaunch_ray [OPTIONS] train.py`: run a job on the nodes of a Ray cluster."""

import sys

from ftlaunch_ray.command import run

sys.exit(run(sys.argv[1:]))
