"""A program that holds a Ray cluster of several nodes on this machine, and ends with its stdin.

It is told `add`, `kill N` or `drain N`, a line each, and answers with a line: the pid of the raylet that it has
started, killed, or told Ray to take away.

    python raylets.py DIRECTORY [FOLDER ...]

Each node has FOLDERs of its own, at the same paths: file systems of a mount namespace, which needs root.
"""

import ctypes
import subprocess
import sys
import time
from typing import Any

from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

CPUS = 2  # of each node
DRAIN = 60.0  # seconds until Ray takes a drained node away

_CLONE_NEWNS = 0x00020000


def leave_folders(folders: list[str]) -> None:
    """Have this process, and what it starts from now on, see new and empty file systems at some folders."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for folder in folders:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", folder], check=True)


directory, *own = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False,
                                                        "temp_dir": directory})  # fmt: skip
print(cluster.address, flush=True)
nodes: dict[int, Any] = {}
for line in sys.stdin:
    verb, _, number = line.strip().partition(" ")
    if verb == "add":
        if own:
            leave_folders(own)
        node = cluster.add_node(num_cpus=CPUS, wait=False, temp_dir=directory)
        pid = node.all_processes["raylet"][0].process.pid
        nodes[pid] = node
    elif verb == "drain":
        pid = int(number)
        deadline = int((time.time() + DRAIN) * 1000)
        why = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        assert cluster.head_node.get_gcs_client().drain_node(nodes[pid].node_id, why, "a test", deadline)[0]
    else:
        pid = int(number)
        cluster.remove_node(nodes.pop(pid), allow_graceful=False)
    print(pid, flush=True)
cluster.shutdown()
