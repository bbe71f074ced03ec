"""The one table of what a job can be asked: YAML keys, command line options, `PET_*` variables, defaults.

The spec reader, the command line and the test of configs/default.yaml all read it from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftlaunch.common.masking import masked_args, masked_env
from ftlaunch.spec import parsers as p
from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.parsing import hosts, notify_targets
from ftlaunch.spec.parsing.rule_parser import parse_rules

_LIMIT = "`auto`, `off` or a duration above zero such as 90s, 30m or 1h30m"
_SILENCE = "`off` or a duration above zero such as 30m"
_GRACE = "a duration such as 30s or 2m; 0 is allowed"
_BACKOFF = "a duration such as 500ms or 10s; 0 is allowed"
_FOLDER = "a path"
_YES_NO = "true or false"
_TIMES = "off or a whole number, 1 or more"
_POLICIES = ("on-failure", "by-cause", "never")
_ANSWERS = ("off", "warn", "stop", "rollback")
_ANSWER = "off, warn, stop or rollback"

_TARGET = (
    Key("script", p.text, "the path of a Python script", None,
        "the Python script to run; or else `module` or `program`", "target", option=False),
    Key("module", p.text, "the name of a Python module", None,
        "the module to run as `python -m` would", "target", option=False),
    Key("program", p.text, "the path or name of a program", None,
        "the program to run without Python", "target", option=False),
    Key("args", p.text_list, "a list such as [--lr, 0.1]", None,
        "arguments for it, a list; ARGS on the command line replace the whole list", "target", option=False,
        show=masked_args),
    Key("env", p.text_map, "a mapping such as {NCCL_DEBUG: INFO}", None,
        "environment variables for the ranks, besides those ftlaunch was started with", "target",
        option=False, show=masked_env),
    Key("python", p.text, "the path of a Python interpreter", None,
        "the interpreter of the ranks; null: the one that runs ftlaunch", "target", option=False, env=("PYTHON_EXEC",)),
)  # fmt: skip

_OURS = (
    Key("job_id", p.job_id, "1 to 64 letters, digits or any of . _ - (no dot or dash first)", None,
        "the job's name, the same in every run of it; null: the script's name, a hash of the command,"
        " and the number of a Slurm array's task"),
    Key("run_dir", p.path, _FOLDER, None,
        "where events, logs and the report go; null: runs/<job-id>", show=shown.path),
    Key("checkpoint_dir", p.path, _FOLDER, None,
        "where checkpoints go; null: <run-dir>/checkpoints", show=shown.path),
    Key("max_restarts", p.whole(0), "a whole number, 0 or more", "3",
        "how many times the job may be restarted after a failure (torchrun: 0)", env=("PET_MAX_RESTARTS",)),
    Key("restart_policy", p.one_of(*_POLICIES), "on-failure, by-cause or never", "on-failure",
        "when to restart: on-failure; by-cause: as the rule for the failure says; never"),
    Key("max_hang_restarts", p.whole(0), "a whole number, 0 or more", None,
        "how many times the job may be restarted after a hang, counted apart; null: as many as max_restarts"),
    Key("restart_window", p.duration_or_off, "off or a duration above zero such as 90m or 24h", "off",
        "count only the restarts of the last so long; off: those of the whole job", show=shown.limit),
    Key("refill_after", p.whole_or_off, "off or a whole number of steps, 1 or more", "off",
        "after so many steps without a failure no restart counts as used; off: never", show=shown.or_off),
    Key("max_same_error", p.whole_or_off, _TIMES, "10",
        "give up when the same error comes so many times in a row without a new step; off: no limit",
        show=shown.or_off),
    Key("max_without_progress", p.whole_or_off, _TIMES, "off",
        "give up after so many restarts in a row without a new step; off: no limit", show=shown.or_off),
    Key("restart_scope", p.one_of("job", "rank"), "job or rank", "job",
        "what to restart: job (all ranks), or rank (only the failed one), for ranks that do not talk to each other"),
    Key("hang_timeout", p.limit, _LIMIT, "auto",
        "how long a rank may go without a step before it counts as hung: auto, off or a duration", show=shown.limit),
    Key("startup_timeout", p.limit, _LIMIT, "auto",
        "how long a rank may take to attach() or its first optimizer step: auto, off or a duration", show=shown.limit),
    Key("eval_timeout", p.limit, _LIMIT, "auto",
        "how long job.phase('eval') may take: auto, off or a duration", show=shown.limit),
    Key("checkpoint_timeout", p.limit, _LIMIT, "auto",
        "how long job.phase('checkpoint') may take: auto, off or a duration", show=shown.limit),
    Key("teardown_timeout", p.limit, _LIMIT, "auto",
        "how long a rank may take to its end after the loop: auto, off or a duration", show=shown.limit),
    Key("exit_timeout", p.limit, _LIMIT, "auto",
        "how long a rank may go on without a step once another is done: auto, off or a duration", show=shown.limit),
    Key("log_timeout", p.duration_or_off, _SILENCE, "off",
        "how long no rank may write a line of log, whatever else they do; off: for ever", show=shown.limit),
    Key("idle_timeout", p.duration_or_off, _SILENCE, "off",
        "how long all ranks may do nothing: no step, no processor time, no I/O; off: for ever", show=shown.limit),
    Key("on_slow", p.one_of("warn", "restart", "off"), "warn, restart or off", "warn",
        "what to do about a rank that the others wait for at every step: warn, restart (all ranks) or off"),
    Key("node_timeout", p.duration(least=1), "a duration, 1s or more", "2s",
        "how long a node may be silent before it counts as lost", show=shown.limit, env=("PET_NODE_TIMEOUT",),
        called="timeout"),
    Key("node_wait", p.duration(), "a duration above zero such as 10m", "10m",
        "how long the job waits for the nodes it needs, at the start and after a loss", show=shown.limit,
        env=("PET_NODE_WAIT",), called="wait"),
    Key("isolate_after", p.whole_or_off, _TIMES, "3", show=shown.or_off,
        help="failures that begin on one machine, after which it gets no ranks where a standby can take its place"),
    Key("topology", p.any_text, "a name", None,
        "this node's failure domain, such as its rack: copies of snapshots go to another one; null: the machine",
        env=("PET_TOPOLOGY",)),
    Key("grace", p.duration(zero=True), _GRACE, "30s",
        "how long a rank told to stop may take before it is killed, on every path", show=shown.limit),
    Key("preempt_when", p.text, "a path that begins with / or ./, or a command", None,
        "this machine will be taken away once this file is there, or this command ends with 0: as SIGTERM then"),
    Key("preempt_every", p.duration(least=0.1), "a duration, 100ms or more", "5s",
        "the time between looks for preempt_when", show=shown.limit),
    Key("backoff_first", p.duration(zero=True), _BACKOFF, "1s",
        "the wait before the first restart; it doubles with each further one", show=shown.limit),
    Key("backoff_max", p.duration(zero=True), _BACKOFF, "60s",
        "the longest wait before a restart", show=shown.limit),
    Key("on_nan", p.one_of(*_ANSWERS), _ANSWER, "warn",
        "when a loss is NaN or infinite: off, warn, stop, or rollback to the newest healthy checkpoint before it"),
    Key("on_spike", p.one_of(*_ANSWERS), _ANSWER, "off",
        "when the loss is in a spike: off, warn, stop or rollback"),
    Key("spike_deviations", p.number, "a number above 0", "7",
        "a spike is a loss so many deviations (scaled median absolute ones) above the median of the last 100",
        show=shown.number),
    Key("spike_steps", p.whole(1, 10), "a whole number from 1 to 10", "3",
        "a spike is so many such losses in a row"),
    Key("skip_bad_data", p.switch, _YES_NO, "true",
        "after a rollback leave out the samples of the bad steps", switch=True),
    Key("compare_replicas", p.steps, "auto, off or a whole number of steps", "auto",
        "steps between comparisons of a part of what is equal on all ranks under DDP; auto: 10; off: none"),
    Key("on_divergence", p.one_of(*_ANSWERS[1:]), "warn, stop or rollback", "warn",
        "when replicas differ: warn, stop, or rollback to a healthy checkpoint from before"),
    Key("memory_interval", p.steps, "a whole number of steps, auto, or 0 for off", "auto",
        "steps between snapshots in memory; auto: as few as cost less than 1 % of the time; 0: none"),
    Key("peer_interval", p.steps, "a whole number of steps, auto, or 0 for off", "auto",
        "steps between copies of snapshots to another node; auto: as few as cost less than 1 % of the time; 0: none"),
    Key("peer_bandwidth", p.bandwidth, "a rate such as 200MB/s or 1.5GiB/s, or off", "off",
        "bytes a second that a node may send to another one for copies; off: as fast as the network takes them",
        show=shown.rate),
    Key("storage_interval", p.steps_or_seconds, "a number of steps, a duration such as 10m, or off", "10m",
        "steps (a plain number) or time (10m) between checkpoints on storage; off: none", show=shown.interval),
    Key("keep", p.whole(1), "a whole number, 1 or more", "5",
        "how many checkpoints to keep on storage: the newest"),
    Key("keep_every", p.steps, "a whole number of steps, or off", "off",
        "keep every checkpoint whose step is a multiple of this for ever besides; off: none", show=shown.or_off),
    Key("storage_bandwidth", p.bandwidth, "a rate such as 200MB/s or 1.5GiB/s, or off", "off",
        "bytes a second that saving beside the training may write; off: as fast as storage takes them",
        show=shown.rate),
    Key("warm", p.switch_or_auto, "auto, true or false", "auto",
        "fork ranks from a process that has imported torch already; auto: where that can be, and say nothing"
        " where it cannot", switch=True),
    Key("preload", p.modules, "auto, or names of modules with commas between them, or a list of them", None,
        "modules that the warm process imports besides torch: none that change between attempts; auto: what the script"
        " imports at its top, once the first attempt has begun", show=shown.items),
    Key("auto_attach", p.switch, _YES_NO, "false",
        "attach to a framework (Hugging Face's Trainer, Lightning) in a script that does not do so by itself",
        switch=True),
    Key("fresh", p.switch, _YES_NO, "false",
        "start from the beginning, whatever earlier runs left", switch=True),
    Key("load_checkpoint", p.step_or_path, "a path, or the number of a step", None,
        "what to begin with: a checkpoint (or a folder of them) of another job, or weights that another library wrote,"
        " used at the first start only; or one of this job's own, by its step: to go back to", show=shown.path),
    Key("resume_training", p.switch, _YES_NO, "true",
        "false: of `load_checkpoint` take the weights only, and begin at step 0", switch=True),
    Key("data_checkpoint_path", p.path, _FOLDER, None,
        "ChatLearn's name of `checkpoint_dir`: data progress is saved there, in one commit with the models",
        option=False),
    Key("enable_resume_training", p.switch, _YES_NO, "true",
        "ChatLearn's: false is `fresh: true`", option=False),
    Key("hosts", hosts.host_list, "hosts such as a,b,user@c or a:8,b:8", None,
        "start an agent on each of these hosts by ssh, and end as they do: a,b,user@c, or a:8,b:8 with their ranks",
        yaml=False),
    Key("hostfile", p.path, _FOLDER, None,
        "like --hosts, the hosts in a file: a line each, as `a`, `a:8` or `a slots=8`", yaml=False),
    Key("ssh", hosts.ssh_command, "a program and its options", "ssh",
        "how --hosts are reached: a program that takes ssh's options, and options for it", yaml=False),
    Key("omp_threads", p.threads, "auto or a whole number, 1 or more", "auto",
        "OMP_NUM_THREADS of a rank; auto: 1 where there are several ranks and the environment does not say",
        show=shown.or_auto),
)  # fmt: skip

_SPEC_ONLY = (
    Key("fault_rules", parse_rules, "a list of mappings such as {log: 'link down', class: network, action: wait}", None,
        "rules for failures, of the form of configs/fault_rules.yaml; they come before those", option=False,
        show=shown.rules),
    Key("notify", notify_targets.targets, "a mapping with `command` or `url`, or a list of such", None,
        "whom to tell of incidents and of the end: a command or a webhook, each with on, timeout and retries",
        option=False, show=shown.targets),
)  # fmt: skip

_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such a choice by rank as in 0:3,1:0"

_TORCHRUN = (
    Key("nproc_per_node", p.workers, "auto, cpu, gpu or a whole number, 1 or more", "1",
        "how many ranks: a number, gpu, cpu, or auto (one a GPU, or a CPU where there is none)", "torchrun",
        env=("PET_NPROC_PER_NODE",), called="nproc"),
    Key("nnodes", p.node_range, "a number of nodes, 1 or more, or MIN:MAX", None,
        "how many nodes, N or MIN:MAX: as many as there are at each start; null: those of the Slurm step, else 1",
        "torchrun", env=("PET_NNODES",)),
    Key("node_rank", p.whole(0), "a whole number, 0 or more", None,
        "this node's place among the nodes; null: that in the Slurm step, else as they come", "torchrun",
        env=("PET_NODE_RANK",), called="rank"),
    Key("rdzv_backend", p.backend, "c10d, static or etcd", None,
        "how nodes meet: c10d (at the endpoint), etcd (in it), static (at master_addr:master_port); null: static where"
        " only the latter is given", "torchrun", env=("PET_RDZV_BACKEND",), called="backend"),
    Key("rdzv_endpoint", p.endpoints, "HOST or HOST:PORT with a port from 1 to 65535", None,
        "where nodes meet, HOST[:PORT] [c10d: port 29400, static: 29500], or etcd's members, HOST[:PORT],... [2379];"
        " null: the Slurm step's first node", "torchrun", env=("PET_RDZV_ENDPOINT",)),
    Key("role", p.text, "a name", "default",
        "the ranks' role, told to them as ROLE_NAME", "torchrun", env=("PET_ROLE",)),
    Key("master_addr", p.word, "a host name or address", "127.0.0.1",
        "MASTER_ADDR of the ranks; where nodes meet that were given no endpoint", "torchrun", env=("PET_MASTER_ADDR",)),
    Key("master_port", p.port, "a port from 1 to 65535, or 0 for a free one", None,
        "MASTER_PORT of the ranks; null: a fresh one for every attempt, safer", "torchrun", env=("PET_MASTER_PORT",)),
    Key("rdzv_id", p.any_text, "a name", None,
        "TORCHELASTIC_RUN_ID of the ranks; null: the Slurm job of several nodes, else the job id", "torchrun",
        env=("PET_RDZV_ID",), called="run_id"),
    Key("log_dir", p.path, _FOLDER, None,
        "where rank logs go, in a folder named after the job; null: <run-dir>/logs", "torchrun", env=("PET_LOG_DIR",)),
    Key("tee", p.streams, _STREAMS, "0",
        "ranks to follow on the terminal, as 3 (all) or 0:3,2:3; 0: rank 0 and those that fail", "torchrun",
        short="-t", env=("PET_TEE",)),
    Key("redirects", p.streams, _STREAMS, "0",
        "ranks to keep off the terminal, as 3 (all) or 1:3 (rank 1); logs are always written", "torchrun",
        short="-r", env=("PET_REDIRECTS",)),
    Key("local_ranks_filter", p.ranks, "ranks such as 0,1,2", None,
        "follow none but these ranks on the terminal, as 0,1,2", "torchrun", env=("PET_LOCAL_RANKS_FILTER",)),
    Key("signals_to_handle", p.signals, "names such as SIGTERM,SIGINT", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "signals on which to stop the job in good order", "torchrun", env=("PET_SIGNALS_TO_HANDLE",),
        show=shown.comma_list, called="stop_signals"),
    Key("virtual_local_rank", p.switch, _YES_NO, "false",
        "each rank sees one GPU, as device 0, and LOCAL_RANK=0", "torchrun", switch=True,
        env=("PET_VIRTUAL_LOCAL_RANK",)),
    Key("shutdown_timeout", p.whole(0), "a whole number of seconds, 0 or more", None,
        "seconds; another name for --grace, which wins", "torchrun", yaml=False,
        env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")),
    Key("standalone", p.switch, _YES_NO, None,
        "take a free port, whatever --master-port and --rdzv-id say", "torchrun", yaml=False, switch=True,
        env=("PET_STANDALONE",)),
    Key("module", p.switch, _YES_NO, None,
        "run SCRIPT as a module, as `python -m` would", "torchrun", yaml=False, switch=True, short="-m",
        env=("PET_MODULE",)),
    Key("no_python", p.switch, _YES_NO, None,
        "run SCRIPT as a program of its own, without Python", "torchrun", yaml=False, switch=True,
        env=("PET_NO_PYTHON",)),
    Key("run_path", p.switch, _YES_NO, None,
        "run SCRIPT as a Python script, even with --no-python", "torchrun", yaml=False, switch=True,
        env=("PET_RUN_PATH",)),
)  # fmt: skip


def _accepted(
    name: str, help_text: str, parse: Callable[[object], Any] = p.any_text, allowed: str = "text", *,
    note: str | None = None, pet: bool = True,
) -> Key:  # fmt: skip
    env = (f"PET_{name.upper()}",) if pet else ()
    return Key(name, parse, allowed, None, help_text, "accepted", yaml=False, env=env, note=note)


_START = ("spawn", "fork", "forkserver")
_NUMA = ("node", "socket", "exclusive", "core-complex")

_ACCEPTED = (
    _accepted("rdzv_conf", "settings of the rendezvous: last_call_timeout=SECONDS; etcd's protocol, cacert, cert, key"),
    _accepted("local_addr", "this node's address for the others"),
    _accepted("monitor_interval", "seconds between looks at the ranks; ftlaunch is woken instead",
              p.number, "a number of seconds above 0"),
    _accepted("start_method", "how multiprocessing would start the ranks", p.one_of(*_START), ", ".join(_START)),
    _accepted("event_log_handler", "where torch's own events go; ftlaunch writes events.jsonl"),
    _accepted("logs_specs", "a plug-in for torch's own logs", pet=False,
              note="ranks log to <run-dir>/logs"),
    _accepted("duplicate_stdout_filters", "copy matching stdout lines to a file of their own",
              note="no filtered copy is written; every line is in the ranks' logs"),
    _accepted("duplicate_stderr_filters", "copy matching stderr lines to a file of their own",
              note="no filtered copy is written; every line is in the ranks' logs"),
    _accepted("numa_binding", "bind ranks to the CPUs near their GPUs", p.one_of(*_NUMA), ", ".join(_NUMA),
              note="ranks are not bound to CPUs", pet=False),
)  # fmt: skip

KEYS = _TARGET + _OURS + _SPEC_ONLY + _TORCHRUN + _ACCEPTED
YAML_KEYS = {key.name: key for key in KEYS if key.yaml}
OPTIONS = {key.name: key for key in KEYS if key.option}
SETTINGS = OPTIONS | {key.name: key for key in _TARGET + _SPEC_ONLY if key.name not in OPTIONS}


def default(name: str) -> Any:
    """The default value of a setting."""
    return SETTINGS[name].default_value
