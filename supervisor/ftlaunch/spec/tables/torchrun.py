"""torchrun's options: those with the same meaning here, and those that are accepted but have no effect on one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftlaunch.spec import parsers as p
from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.meeting_stores.table import allowed_backends, backend

_FOLDER = "a path"
_YES_NO = "true or false"
_NUMA = ("node", "socket", "exclusive", "core-complex")
_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such a choice by rank as in 0:3,1:0"

TORCHRUN = (
    Key(
        "nproc_per_node", p.workers, allowed="auto, cpu, gpu or a whole number, 1 or more", default="1",
        help="how many ranks: a number, gpu, cpu, or auto (one a GPU, or a CPU where there is none)",
        group="torchrun", env=("PET_NPROC_PER_NODE",), called="nproc",
    ),
    Key(
        "nnodes", p.node_range, allowed="a number of nodes, 1 or more, or MIN:MAX", default=None,
        help="how many nodes, N or MIN:MAX: as many as there are at each start; null: those of the Slurm step, else 1",
        group="torchrun", env=("PET_NNODES",),
    ),
    Key(
        "node_rank", p.whole(0), allowed="a whole number, 0 or more", default=None,
        help="this node's place among the nodes; null: that in the Slurm step, else as they come",
        group="torchrun", env=("PET_NODE_RANK",), called="rank",
    ),
    Key(
        "rdzv_backend", backend, allowed=allowed_backends(), default=None,
        help="how nodes meet: c10d (at the endpoint), etcd (in it), static (at master_addr:master_port); null: static"
             " where only the latter is given",
        group="torchrun", env=("PET_RDZV_BACKEND",), called="backend",
    ),
    Key(
        "rdzv_endpoint", p.endpoints, allowed="HOST or HOST:PORT with a port from 1 to 65535", default=None,
        help="where nodes meet, HOST[:PORT] [c10d: port 29400, static: 29500], or etcd's members, HOST[:PORT],..."
             " [2379]; null: the Slurm step's first node",
        group="torchrun", env=("PET_RDZV_ENDPOINT",),
    ),
    Key(
        "role", p.text, allowed="a name", default="default",
        help="the ranks' role, told to them as ROLE_NAME",
        group="torchrun", env=("PET_ROLE",),
    ),
    Key(
        "master_addr", p.word, allowed="a host name or address", default="127.0.0.1",
        help="MASTER_ADDR of the ranks; where nodes meet that were given no endpoint",
        group="torchrun", env=("PET_MASTER_ADDR",),
    ),
    Key(
        "master_port", p.port, allowed="a port from 1 to 65535, or 0 for a free one", default=None,
        help="MASTER_PORT of the ranks; null: a fresh one for every attempt, safer",
        group="torchrun", env=("PET_MASTER_PORT",),
    ),
    Key(
        "rdzv_id", p.any_text, allowed="a name", default=None,
        help="TORCHELASTIC_RUN_ID of the ranks; null: the Slurm job of several nodes, else the job id",
        group="torchrun", env=("PET_RDZV_ID",), called="run_id",
    ),
    Key(
        "log_dir", p.path, allowed=_FOLDER, default=None,
        help="where rank logs go, in a folder named after the job; null: <run-dir>/logs",
        group="torchrun", env=("PET_LOG_DIR",),
    ),
    Key(
        "tee", p.streams, allowed=_STREAMS, default="0",
        help="ranks to follow on the terminal, as 3 (all) or 0:3,2:3; 0: rank 0 and those that fail",
        group="torchrun", short="-t", env=("PET_TEE",),
    ),
    Key(
        "redirects", p.streams, allowed=_STREAMS, default="0",
        help="ranks to keep off the terminal, as 3 (all) or 1:3 (rank 1); logs are always written",
        group="torchrun", short="-r", env=("PET_REDIRECTS",),
    ),
    Key(
        "local_ranks_filter", p.ranks, allowed="ranks such as 0,1,2", default=None,
        help="follow none but these ranks on the terminal, as 0,1,2",
        group="torchrun", env=("PET_LOCAL_RANKS_FILTER",),
    ),
    Key(
        "log_line_prefix_template", p.any_text, allowed="text", default="",
        help="what comes before a rank's lines on the terminal, with ${role_name}, ${local_rank}, ${rank} and"
             " ${hostname}; empty: [${rank}] and a space",
        group="torchrun", env=("PET_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    ),
    Key(
        "signals_to_handle", p.signals, allowed="names such as SIGTERM,SIGINT", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="signals on which to stop the job in good order",
        group="torchrun", env=("PET_SIGNALS_TO_HANDLE",), show=shown.comma_list, called="stop_signals",
    ),
    Key(
        "virtual_local_rank", p.switch, allowed=_YES_NO, default="false",
        help="each rank sees one GPU, as device 0, and LOCAL_RANK=0",
        group="torchrun", switch=True, env=("PET_VIRTUAL_LOCAL_RANK",),
    ),
    Key(
        "numa_binding", p.one_of(*_NUMA), allowed=", ".join(_NUMA), default=None,
        help="bind each rank to CPUs near its GPU: its NUMA node's, its socket's, a share of the node's cores, or one"
             " core complex; null: to none",
        group="torchrun",
    ),
    Key(
        "shutdown_timeout", p.whole(0), allowed="a whole number of seconds, 0 or more", default=None,
        help="seconds; another name for --grace, which wins",
        group="torchrun", yaml=False, env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    ),
    Key(
        "standalone", p.switch, allowed=_YES_NO, default=None,
        help="take a free port, whatever --master-port and --rdzv-id say",
        group="torchrun", yaml=False, switch=True, env=("PET_STANDALONE",),
    ),
    Key(
        "module", p.switch, allowed=_YES_NO, default=None,
        help="run SCRIPT as a module, as `python -m` would",
        group="torchrun", yaml=False, switch=True, short="-m", env=("PET_MODULE",),
    ),
    Key(
        "no_python", p.switch, allowed=_YES_NO, default=None,
        help="run SCRIPT as a program of its own, without Python",
        group="torchrun", yaml=False, switch=True, env=("PET_NO_PYTHON",),
    ),
    Key(
        "run_path", p.switch, allowed=_YES_NO, default=None,
        help="run SCRIPT as a Python script, even with --no-python",
        group="torchrun", yaml=False, switch=True, env=("PET_RUN_PATH",),
    ),
)  # fmt: skip


def _accepted(
    name: str,
    help_text: str,
    parse: Callable[[object], Any] = p.any_text,
    allowed: str = "text",
    *,
    note: str | None = None,
    pet: bool = True,
) -> Key:
    """Return the key of an option that is accepted for torchrun's sake.

    Args:
        name: name of the option.
        help_text: its help.
        parse: its parser.
        allowed: says what the parser allows.
        note: printed when the option is used: an effect that torchrun has and ftlaunch has not.
        pet: whether torchrun also reads the variable PET_<NAME>.
    """
    return Key(
        name=name,
        parse=parse,
        allowed=allowed,
        default=None,
        help=help_text,
        group="accepted",
        yaml=False,
        env=(f"PET_{name.upper()}",) if pet else (),
        note=note,
    )


_START = ("spawn", "fork", "forkserver")

ACCEPTED = (
    _accepted(
        "rdzv_conf",
        "settings of the rendezvous: last_call_timeout=SECONDS; auth=none; etcd's protocol, cacert, cert, key",
    ),
    _accepted("local_addr", "this node's address for the others"),
    _accepted(
        "monitor_interval",
        "seconds between looks at the ranks; ftlaunch is woken instead",
        parse=p.number, allowed="a number of seconds above 0",
    ),
    _accepted(
        "start_method",
        "how multiprocessing would start the ranks",
        parse=p.one_of(*_START), allowed=", ".join(_START),
    ),
    _accepted("event_log_handler", "where torch's own events go; ftlaunch writes events.jsonl"),
    _accepted(
        "logs_specs",
        "a plug-in for torch's own logs",
        pet=False, note="ranks log to <run-dir>/logs",
    ),
    _accepted(
        "duplicate_stdout_filters",
        "copy matching stdout lines to a file of their own",
        note="no filtered copy is written; every line is in the ranks' logs",
    ),
    _accepted(
        "duplicate_stderr_filters",
        "copy matching stderr lines to a file of their own",
        note="no filtered copy is written; every line is in the ranks' logs",
    ),
)  # fmt: skip
