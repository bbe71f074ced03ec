"""The messages between a node's agent and the head: their names, fields and types. Pure.

A message is a JSON object whose `do` is its name. Messages are checked although both ends know the job's token, because
a peer of another build, or a bug, must end in a sentence and not in a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = "12"
"""the version of the messages; both ends must have the same"""

_INT = (int,)
_TEXT = (str,)
_LIST = (list,)
_MAP = (dict,)
_NUMBER = (int, float)

# From an agent to the head.
UP: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    # The first message: introduces the node, and says what its memory holds of the job.
    # `rank`: --node-rank, or -1. `port`: free for the ranks to meet at. `held`: first rank and number of ranks, or [].
    # `slots`: rank -> steps. `lineage`: the attempt in which the steps were made. `running`: the fields of
    # AgentRanks.running, if the attempt's ranks run on. `probe`: a port that refuses connections once the agent has
    # ended. `facts`: the fields of NodeFacts. `wall`: seconds since the epoch. `warnings`: of the quick check.
    # `topology`: the failure domain. `copier`: the fields of the message `copier`. `devices`, not checked here: the
    # devices' names (system/device_names.py), sent if metrics of each rank are asked for.
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
    # The first and only message of a head that the nodes have elected elsewhere, to one at the job's endpoint, which
    # gives way. Where the elected head is, and its term.
    "elsewhere": {"address": _TEXT, "port": _INT, "term": _INT},
    "unfit": {"why": _TEXT},  # the node cannot take part, and ends
    # Ranks can be started: the fork server is ready, or is known not to work. `apart`: which of the directories
    # `run_dir` and `checkpoint_dir` the node does not share with the head. `journal`: size and SHA-256 of what a node
    # with a run dir of its own has of the journal, or nothing.
    "ready": {"apart": _LIST, "journal": _LIST},
    # A file of a node with a run dir of its own, or a part of one. `kind`: log or error, of a rank in an attempt, or
    # autopsy, with the file's `name`. `offset`: where in the file `data` (base64) begins.
    "file": {"kind": _TEXT, "attempt": _INT, "rank": _INT, "name": _TEXT, "offset": _INT, "data": _TEXT},
    # A sign of life. `number`: counts up. `lineage`: the attempt of the pages. `now`: the agent's monotonic clock.
    # `words`: [rank, [[word, value], ...]] of changed words in the ranks' halves of the pages; [first word, value,
    # count] for several words of one value. `noted`: [rank, active, logged, busy] of ranks that do not beat.
    # `stopped`: ranks that are stopped.
    "beat": {"number": _INT, "lineage": _TEXT, "now": _NUMBER, "words": _LIST, "noted": _LIST, "stopped": _LIST},
    "started": {"attempt": _INT, "pids": _MAP, "log_from": _MAP},
    "cannot_start": {"attempt": _INT, "rank": _INT, "why": _TEXT},
    "dying": {"attempt": _INT, "ranks": _MAP},  # rank -> the signal that is ending it
    "exits": {"attempt": _INT, "codes": _MAP},  # rank -> exit code, in the order of the ends
    # No process of the attempt is left. `port`: free for the next attempt. `slots`: as in `hello`, and final.
    # `evidence`: rank -> the newest step of which the rank has left a fingerprint, or -1. `awaits_memory`: 1 if GPU
    # memory of the processes may not be free yet; then `gpu_memory` follows.
    "gone": {"attempt": _INT, "port": _INT, "slots": _MAP, "evidence": _MAP, "awaits_memory": _INT},
    # GPU memory of the attempt's processes is free, or was waited for long enough, for `seconds` in all. `holders`:
    # what is held still, as MemoryWaitEnd.to_fields gives it. `silent`: 1 if the driver has not answered.
    "gpu_memory": {"attempt": _INT, "seconds": _NUMBER, "holders": _LIST, "silent": _INT},
    "saver": {"answer": _MAP},
    # `port`: where the copier listens, or 0. `lineage`: the attempt whose copies it keeps. `every`: the steps between
    # copies that the node can afford, or 0 before its first copy.
    "copier": {"port": _INT, "lineage": _TEXT, "every": _INT},
    "copies": {"number": _INT, "held": _MAP},  # the answer to `copies`: rank -> steps
    # Sent before a byte is read. `sources`: rows of rank, group, node, the rank `of` whose snapshot is read there, and
    # bytes.
    "fetch_planned": {"number": _INT, "sources": _LIST},
    # The answer to `fetch`. `error`: empty after success. `sources`: as they were in the end.
    "fetched": {"number": _INT, "error": _TEXT, "seconds": _NUMBER, "bytes": _INT, "sources": _LIST},
    "collected": {"number": _INT},
    "stop": {"why": _TEXT},
    "drain": {"why": _TEXT},  # this node was told to end: the job goes on without the node, or stops
    "hurry": {},
    "ask": {"number": _INT, "request": _MAP},  # a request on the node's control socket
    "logs": {"number": _INT, "answer": _MAP},  # the answer to `logs`, as log_pieces.py gives it
    # The answer to `vote`: the name of this node's voter, empty if it has none, and the port at which it is asked.
    "voter": {"name": _TEXT, "port": _INT},
}
# From the head to an agent.
DOWN: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    # Start the ranks of an attempt. `place`: the fields of Placement. `resume`: kind, step, first step to hold for the
    # saver, steps between snapshots or 0, and the step that is being saved. `copies`: the lineage of the attempt
    # `before`, the steps between copies (`every`; 0 for none), and the `buddy` that keeps them: node, address and port,
    # or nothing. `seed`: of the job, an integer.
    "spawn": {"attempt": _INT, "place": _MAP, "resume": _LIST, "lineage": _TEXT, "copies": _MAP, "seed": _TEXT},
    # To a node that stands by: copies of `step` of the attempt `before` belong to this attempt, too. NONE: no copies
    # do.
    "keep": {"lineage": _TEXT, "before": _TEXT, "step": _INT},
    "buddy": {"to": _MAP},  # another buddy, or the same one at another port
    "copies": {"number": _INT, "lineage": _TEXT},  # report the kept copies; take and send none from now on
    # Fetch snapshots that the node's ranks lack. `ranks`: rank -> nodes that keep a copy. `suppliers`: nodes whose own
    # ranks hold the step.
    "fetch": {"number": _INT, "step": _INT, "world": _INT, "ranks": _MAP, "suppliers": _LIST},
    # The number of the beat that was heard, whose sending renews the node's lease; -1 renews nothing, and only shows
    # that the head lives.
    "heard": {"number": _INT},
    "pages": {"verb": _TEXT, "values": _LIST},  # a method of Pages and its arguments (cluster_pages.perform)
    "leave": {},  # SIGTERM to the ranks
    "kill": {},
    "saver": {"request": _MAP},
    "collect": {"number": _INT, "request": _MAP},  # collect the data of an autopsy
    "collect_no_more": {"number": _INT},
    "answer": {"number": _INT, "answer": _MAP},  # to `ask`
    "logs": {"number": _INT, "request": _MAP},  # about the logs of a node with a run dir of its own (log_pieces.py)
    # For a node without the head's run dir: a piece of the journal, or all of another file (`offset` -1), in base64.
    "copy": {"name": _TEXT, "offset": _INT, "data": _TEXT},
    # This head gives way to one that the nodes have elected elsewhere: go there.
    "elsewhere": {"address": _TEXT, "port": _INT},
    # Start a voter, which says who the head is. Term and process of this head.
    "vote": {"term": _INT, "head": _TEXT},
    "voting": {},  # this node's voter is one of those that elect the head: the node may replace a head that is gone
    # The answer to `hello`. `term`: of this head. `word`: lies in the directories that all nodes share.
    "welcome": {"term": _INT, "word": _TEXT},
    "standby": {"why": _TEXT},  # the node has no place; `why` is a clause that follows a colon
    "refused": {"why": _TEXT},
    "stopping": {},  # the job was told to stop; the node passes this on to a next head
    "dismissed": {"why": _TEXT},  # the job goes on without this node
    "done": {"code": _INT, "keep": _INT},  # the job is over; keep: 1 if memory holds steps that storage lacks
}


def check(message: Mapping[str, Any], known: Mapping[str, Mapping[str, tuple[type, ...]]]) -> str:
    """Return the name of a message.

    Args:
        message: the message as received.
        known: UP or DOWN.

    Raises:
        ValueError: the name is not one of `known`, or a field is missing or of a wrong type.
    """
    name = message.get("do")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"a message of an unknown kind ({name!r})")
    for field, kinds in known[name].items():
        value = message.get(field)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"a message `{name}` whose `{field}` is {value!r}")
    return name
