"""Which rank this process is, in the words of torchrun and in those of MindSpore's dynamic cluster.

The supervisor numbers ranks as torchrun does; MindSpore wants words of its own, and a scheduler process by which the
ranks find each other. Under `msrun` it is the other way round: MindSpore's words are there, the hooks want torchrun's.
https://www.mindspore.cn/tutorials/en/master/parallel/dynamic_cluster.html
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ftlaunch_contract import protocol

_OF_ONE_RANK = {"RANK_ID": "0", "RANK_SIZE": "1", "DEVICE_ID": "0"}
"""what ModelArts' scripts read (`int(os.getenv("RANK_ID"))`) on a single rank, too; MindSpore does not act upon it"""
_SCHEDULER = Path(__file__).with_name("scheduler.py")


def adopt() -> None:
    """Have the words of both. Call it before `mindspore.communication.init()`, in every rank.

    A rank that is the only one joins no cluster. Rank 0 of a supervisor's several ranks starts the scheduler, at
    MASTER_PORT. Raises OSError where it cannot.
    """
    environ = os.environ
    if "MS_ROLE" in environ:
        if environ["MS_ROLE"] == "MS_WORKER" and protocol.ENV_SUPERVISOR not in environ:
            _name_as_torchrun()
        return
    if "RANK_TABLE_FILE" in environ:
        return
    if environ.get("WORLD_SIZE", "1") == "1":
        for word, number in _OF_ONE_RANK.items():
            environ.setdefault(word, number)
        return
    if protocol.ENV_SUPERVISOR not in environ:
        return
    environ |= {
        "MS_WORKER_NUM": environ["WORLD_SIZE"], "MS_NODE_ID": environ["RANK"], "RANK_ID": environ["RANK"],
        "RANK_SIZE": environ["WORLD_SIZE"], "DEVICE_ID": environ["LOCAL_RANK"],
        "MS_SCHED_HOST": environ["MASTER_ADDR"], "MS_SCHED_PORT": environ["MASTER_PORT"],
    }  # fmt: skip
    if environ["RANK"] == "0":
        subprocess.Popen([sys.executable, _SCHEDULER], env={**environ, "MS_ROLE": "MS_SCHED"})
    environ["MS_ROLE"] = "MS_WORKER"


def _name_as_torchrun() -> None:
    """Started by msrun. Without RANK_ID (msrun on several machines, without --node_rank) nothing is known yet."""
    environ = os.environ
    if "RANK_ID" not in environ:
        return
    named = {"RANK": "RANK_ID", "WORLD_SIZE": "MS_WORKER_NUM", "MASTER_ADDR": "MS_SCHED_HOST",
             "MASTER_PORT": "MS_SCHED_PORT"}  # fmt: skip
    for word, theirs in named.items():
        environ.setdefault(word, environ[theirs])
