"""Translate the environment variables that number ranks between torchrun and MindSpore's dynamic cluster.

The supervisor numbers ranks by torchrun's variables. MindSpore reads variables of its own, and needs a scheduler
process by which the ranks find each other. Under `msrun` MindSpore's variables are set, and the hooks need torchrun's.
https://www.mindspore.cn/tutorials/en/master/parallel/dynamic_cluster.html
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ftlaunch_contract import protocol

_OF_ONE_RANK = {"RANK_ID": "0", "RANK_SIZE": "1", "DEVICE_ID": "0"}
"""variables that ModelArts' scripts read even on a single rank (`int(os.getenv("RANK_ID"))`); MindSpore ignores them"""
_SCHEDULER = Path(__file__).with_name("scheduler.py")


def adopt() -> None:
    """Set the variables that are missing in this process's environment, torchrun's or MindSpore's.

    Importing ftlaunch_mindspore calls this function in every rank, before `mindspore.communication.init()`. A job of
    one rank joins no cluster. With several ranks under a supervisor, rank 0 also starts the scheduler process, which
    listens at MASTER_PORT.

    Raises:
        OSError: the scheduler cannot be started.
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
    """Set torchrun's variables from those of msrun.

    RANK_ID is missing under msrun on several machines without --node_rank; the rank is not known then.
    """
    environ = os.environ
    if "RANK_ID" not in environ:
        return
    named = {"RANK": "RANK_ID", "WORLD_SIZE": "MS_WORKER_NUM", "MASTER_ADDR": "MS_SCHED_HOST",
             "MASTER_PORT": "MS_SCHED_PORT"}  # fmt: skip
    for word, theirs in named.items():
        environ.setdefault(word, environ[theirs])
