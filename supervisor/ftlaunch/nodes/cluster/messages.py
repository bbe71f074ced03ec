"""The messages between a node's agent and the head: their names, their fields, and what each field must be. Pure.

A message is a JSON object whose `do` is its name. Both ends have proven that they know the job's token; a message is
checked all the same: a peer of another build, or a bug, must end in a sentence and not in a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = "8"

_INT, _TEXT, _LIST, _MAP, _NUMBER = (int,), (str,), (list,), (dict,), (int, float)

# from an agent to the head
UP: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    # the first one: who it is, and what its memory holds of the job. `held`: first rank and number of ranks, or [];
    # `slots`: rank -> steps; `lineage`: of which attempt they are; `running`: that attempt's place, processes and ends,
    # kind and step of its resume, the step to stop at and whether the agent has killed them, where its ranks run on;
    # `probe`: a port at which nobody listens any more once the agent has ended; `facts`: see membership/facts.py;
    # `devices`: see system/device_names.py, sent where metrics of each rank are asked for;
    # `wall`: seconds since the epoch; `warnings`: of its quick check; `topology`: its failure domain; `copier`: the
    # fields of `copier`
    "hello": {
        "job": _TEXT,
        "host": _TEXT,
        "rank": _INT,
        "probe": _INT,
        "port": _INT,
        "held": _LIST,
        "slots": _MAP,
        "lineage": _TEXT,
        "running": _MAP,
        "facts": _MAP,
        "wall": _NUMBER,
        "warnings": _LIST,
        "topology": _TEXT,
        "copier": _MAP,
    },
    "unfit": {"why": _TEXT},  # the node ends: it cannot take part
    "ready": {},  # ranks can be forked, or it is known that they cannot
    # `number`: counts up; `now`: the agent's monotonic clock; `words`: [rank, [[word, value], ...]] that have changed
    # in the ranks' halves of the pages, or [first word, value, how many] where several words have one value; `noted`:
    # [rank, active, logged, busy] of ranks that do not beat; `stopped`: ranks that are stopped
    # `lineage`: of which attempt the pages are
    "beat": {"number": _INT, "lineage": _TEXT, "now": _NUMBER, "words": _LIST, "noted": _LIST, "stopped": _LIST},
    "started": {"attempt": _INT, "pids": _MAP, "log_from": _MAP},
    "cannot_start": {"attempt": _INT, "rank": _INT, "why": _TEXT},
    "dying": {"attempt": _INT, "ranks": _MAP},  # rank -> the signal that is ending it
    "exits": {"attempt": _INT, "codes": _MAP},  # rank -> exit code, in the order of the ends
    # no process of the attempt is left; `port` is free for the next one; `slots`: as of `hello`, and final; `evidence`:
    # rank -> the newest step of which it has left a fingerprint, or -1
    "gone": {"attempt": _INT, "port": _INT, "slots": _MAP, "evidence": _MAP},
    "saver": {"answer": _MAP},
    # `port`: where it listens, 0: nowhere; `lineage`: the attempt whose copies it keeps; `every`: the steps between
    # copies that the node wants, from what one costs; 0: it has sent none
    "copier": {"port": _INT, "lineage": _TEXT, "every": _INT},
    "copies": {"number": _INT, "held": _MAP},  # the answer to `copies`: rank -> steps
    # before a byte is read; `sources`: rows of rank, group, node, the rank `of` whose snapshot is read there, and bytes
    "fetch_planned": {"number": _INT, "sources": _LIST},
    # the answer to `fetch`; `error`: empty where all is there; `sources`: as they were in the end
    "fetched": {"number": _INT, "error": _TEXT, "seconds": _NUMBER, "bytes": _INT, "sources": _LIST},
    "collected": {"number": _INT},
    "stop": {"why": _TEXT},
    "drain": {"why": _TEXT},  # this node was told to end: the job goes on without it, or stops
    "hurry": {},
    "ask": {"number": _INT, "request": _MAP},  # what was asked on the node's control socket
}
# from the head to an agent
DOWN: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    # `place`: the fields of Placement; `resume`: kind, step, the first step to be held for the saver, the steps between
    # snapshots, or 0, and the step that is being saved
    # `copies`: the lineage of the attempt `before`, steps between copies (`every`, 0: none), and the `buddy` that keeps
    # them: node, address and port, or nothing
    # `seed`: of the job, a whole number
    "spawn": {"attempt": _INT, "place": _MAP, "resume": _LIST, "lineage": _TEXT, "copies": _MAP, "seed": _TEXT},
    # to a node that stands by: what it keeps of `step` of the attempt `before` belongs to this attempt; NONE: nothing
    "keep": {"lineage": _TEXT, "before": _TEXT, "step": _INT},
    "buddy": {"to": _MAP},  # another one, or the same at another port
    "copies": {"number": _INT, "lineage": _TEXT},  # what does the node keep? It takes and sends none from here on
    # snapshots that its ranks lack: rank -> nodes that keep it; `suppliers`: nodes that have their own of that step
    "fetch": {"number": _INT, "step": _INT, "world": _INT, "ranks": _MAP, "suppliers": _LIST},
    # the beat that was heard: from its sending on the node's ranks may go on for a while; -1: the head lives, and says
    # nothing of that
    "heard": {"number": _INT},
    "pages": {"verb": _TEXT, "values": _LIST},  # what Pages does to all pages, see cluster_pages.py
    "leave": {},  # SIGTERM to the ranks
    "kill": {},
    "saver": {"request": _MAP},
    "collect": {"number": _INT, "request": _MAP},  # what an autopsy is made of
    "collect_no_more": {"number": _INT},
    "answer": {"number": _INT, "answer": _MAP},  # to `ask`
    # the answer to `hello`; `term`: of this head; `word`: see membership/shared_dirs.py
    "welcome": {"term": _INT, "word": _TEXT},
    "standby": {"why": _TEXT},  # the node has no place, and what it is for: a clause that follows a colon
    "refused": {"why": _TEXT},
    "stopping": {},  # the job was told to stop: should the head be lost, the next one is to hear of it
    "dismissed": {"why": _TEXT},  # the job goes on without this node
    "done": {"code": _INT, "keep": _INT},  # the job is over; keep: 1 where memory holds what storage does not
}


def check(message: Mapping[str, Any], known: Mapping[str, Mapping[str, tuple[type, ...]]]) -> str:
    """The name of a message that is one of `known`. Raises ValueError with a sentence."""
    name = message.get("do")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"a message of an unknown kind ({name!r})")
    for field, kinds in known[name].items():
        value = message.get(field)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"a message `{name}` whose `{field}` is {value!r}")
    return name
