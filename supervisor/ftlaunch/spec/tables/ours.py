"""The settings that torchrun does not have: restarts, limits, snapshots, checkpoints, hosts."""

from __future__ import annotations

from ftlaunch.spec import parsers as p
from ftlaunch.spec import shown
from ftlaunch.spec.key import Key
from ftlaunch.spec.parsing import hosts

_LIMIT = "`auto`, `off` or a duration above zero such as 90s, 30m or 1h30m"
_SILENCE = "`off` or a duration above zero such as 30m"
_GRACE = "a duration such as 30s or 2m; 0 is allowed"
_BACKOFF = "a duration such as 500ms or 10s; 0 is allowed"
_FOLDER = "a path"
_FOLDER_OR_ADDRESS = f"{_FOLDER}, or the address of a store"
_YES_NO = "true or false"
_TIMES = "off or a whole number, 1 or more"
_POLICIES = ("on-failure", "by-cause", "never")
_ANSWERS = ("off", "warn", "stop", "rollback")
_ANSWER = "off, warn, stop or rollback"

OURS = (
    Key(
        "job_id", p.job_id, allowed="1 to 64 letters, digits or any of . _ - (no dot or dash first)", default=None,
        help="the job's name, the same in every run of it; null: the script's name, a hash of the command, and the"
             " number of a Slurm array's task",
    ),
    Key(
        "run_dir", p.path, allowed=_FOLDER, default=None,
        help="where events, logs and the report go; null: runs/<job-id>",
        show=shown.path,
    ),
    Key(
        "checkpoint_dir", p.folder_or_address, allowed=_FOLDER_OR_ADDRESS, default=None,
        help="where checkpoints go: a folder, or a store such as file:///mnt/bucket, from which an empty machine goes"
             " on; null: <run-dir>/checkpoints",
        show=shown.path,
    ),
    Key(
        "checkpoint_cache", p.path, allowed=_FOLDER, default=None,
        help="with a store as checkpoint_dir: the folder of this machine in which checkpoints are made; null:"
             " <run-dir>/checkpoints",
    ),
    Key(
        "checkpoint_cache_max_size", p.size_or_off,
        allowed="a size of 1MB or more, such as 200GiB, or off", default="off",
        help="with a store as checkpoint_dir: bytes of checkpoints that this folder keeps. The newest stays, and so do"
             " those that are not stored yet; off: only `keep` counts",
        show=shown.size,
    ),
    Key(
        "take_over_store", p.switch, allowed=_YES_NO, default="false",
        help="with a store as checkpoint_dir: begin at once, although the job may still run on another machine, which"
             " stops then",
        switch=True,
    ),
    Key(
        "max_restarts", p.whole(0), allowed="a whole number, 0 or more", default="3",
        help="how many times the job may be restarted after a failure or a hang (torchrun: 0)",
        env=("PET_MAX_RESTARTS",),
    ),
    Key(
        "restart_policy", p.one_of(*_POLICIES), allowed="on-failure, by-cause or never", default="on-failure",
        help="when to restart: on-failure; by-cause: as the rule for the failure says; never",
    ),
    Key(
        "max_hang_restarts", p.whole(0), allowed="a whole number, 0 or more", default=None,
        help="how many times the job may be restarted after a hang, counted apart; null: hangs count as max_restarts",
    ),
    Key(
        "restart_window", p.duration_or_off, allowed="off or a duration above zero such as 90m or 24h", default="off",
        help="count only the restarts of the last so long; off: those of the whole job",
        show=shown.limit,
    ),
    Key(
        "refill_after", p.whole_or_off, allowed="off or a whole number of steps, 1 or more", default="off",
        help="after so many steps without a failure no restart counts as used; off: never",
        show=shown.or_off,
    ),
    Key(
        "max_same_error", p.whole_or_off, allowed=_TIMES, default="10",
        help="give up when the same error comes so many times in a row without a new step; off: no limit",
        show=shown.or_off,
    ),
    Key(
        "max_without_progress", p.whole_or_off, allowed=_TIMES, default="off",
        help="give up after so many restarts in a row without a new step; off: no limit",
        show=shown.or_off,
    ),
    Key(
        "no_requeue_code", p.exit_code, allowed="an exit code from 1 to 125, and none of 2, 70 and 75", default="1",
        help="the exit code of a job that is given up for a reason that would come again wherever it is started, for"
             " schedulers that know such a code (NVRx: 93)",
    ),
    Key(
        "restart_scope", p.one_of("job", "rank"), allowed="job or rank", default="job",
        help="what to restart: job (all ranks), or rank (only the failed one), for ranks that do not talk to each"
             " other",
    ),
    Key(
        "hang_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long a rank may go without progress before it counts as hung: auto, off or a duration, which holds"
             " in each phase that has no option of its own",
        show=shown.limit,
    ),
    Key(
        "startup_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long a rank may take to attach(), and from there to its first step: auto, off or a duration",
        show=shown.limit,
    ),
    Key(
        "eval_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long job.phase('eval') may take: auto, off or a duration",
        show=shown.limit,
    ),
    Key(
        "checkpoint_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long job.phase('checkpoint') may take: auto, off or a duration",
        show=shown.limit,
    ),
    Key(
        "teardown_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long a rank may take to its end after the loop: auto, off or a duration",
        show=shown.limit,
    ),
    Key(
        "exit_timeout", p.limit, allowed=_LIMIT, default="auto",
        help="how long a rank may go on without a step once another is done: auto, off or a duration",
        show=shown.limit,
    ),
    Key(
        "log_timeout", p.duration_or_off, allowed=_SILENCE, default="off",
        help="how long no rank may write a line of log, whatever else they do; off: for ever",
        show=shown.limit,
    ),
    Key(
        "idle_timeout", p.duration_or_off, allowed=_SILENCE, default="off",
        help="how long all ranks may do nothing: no step, no processor time, no I/O; off: for ever",
        show=shown.limit,
    ),
    Key(
        "on_slow", p.one_of("warn", "restart", "off"), allowed="warn, restart or off", default="warn",
        help="what to do about a rank that the others wait for at every step: warn, restart (all ranks) or off",
    ),
    Key(
        "node_timeout", p.duration(least=1), allowed="a duration, 1s or more", default="2s",
        help="how long a node may be silent before it counts as lost",
        show=shown.limit, env=("PET_NODE_TIMEOUT",), called="timeout",
    ),
    Key(
        "node_wait", p.duration(), allowed="a duration above zero such as 10m", default="10m",
        help="how long the job waits for the nodes it needs, at the start and after a loss",
        show=shown.limit, env=("PET_NODE_WAIT",), called="wait",
    ),
    Key(
        "isolate_after", p.whole_or_off, allowed=_TIMES, default="3", show=shown.or_off,
        help="failures that begin on one machine, after which it gets no ranks where a standby can take its place",
    ),
    Key(
        "topology", p.any_text, allowed="a name", default=None,
        help="this node's failure domain, such as its rack: copies of snapshots go to another one; null: the machine",
        env=("PET_TOPOLOGY",),
    ),
    Key(
        "node_check", p.text, allowed="a command", default=None,
        help="a command that a node runs before it has ranks; any exit code but 0 keeps it out, and it ends with 75",
    ),
    Key(
        "node_check_timeout", p.duration(least=1), allowed="a duration, 1s or more", default="5m",
        help="how long node_check may take",
        show=shown.limit,
    ),
    Key(
        "grace", p.duration(zero=True), allowed=_GRACE, default="30s",
        help="how long a rank told to stop may take before it is killed, on every path",
        show=shown.limit,
    ),
    Key(
        "preempt_when", p.text, allowed="a path that begins with / or ./, or a command", default=None,
        help="this machine will be taken away once this file is there, or this command ends with 0: as SIGTERM then",
    ),
    Key(
        "preempt_every", p.duration(least=0.1), allowed="a duration, 100ms or more", default="5s",
        help="the time between looks for preempt_when",
        show=shown.limit,
    ),
    Key(
        "backoff_first", p.duration(zero=True), allowed=_BACKOFF, default="1s",
        help="the wait before the first restart; it doubles with each further one",
        show=shown.limit,
    ),
    Key(
        "backoff_max", p.duration(zero=True), allowed=_BACKOFF, default="60s",
        help="the longest wait before a restart",
        show=shown.limit,
    ),
    Key(
        "on_nan", p.one_of(*_ANSWERS), allowed=_ANSWER, default="warn",
        help="when a loss is NaN or infinite: off, warn, stop, or rollback to the newest healthy checkpoint before it",
    ),
    Key(
        "on_spike", p.one_of(*_ANSWERS), allowed=_ANSWER, default="off",
        help="when the loss is in a spike: off, warn, stop or rollback",
    ),
    Key(
        "spike_deviations", p.number, allowed="a number above 0", default="7",
        help="a spike is a loss so many deviations (scaled median absolute ones) above the median of the last 100",
        show=shown.number,
    ),
    Key(
        "spike_steps", p.whole(1, 10), allowed="a whole number from 1 to 10", default="3",
        help="a spike is so many such losses in a row",
    ),
    Key(
        "skip_bad_data", p.switch, allowed=_YES_NO, default="true",
        help="after a rollback leave out the samples of the bad steps",
        switch=True,
    ),
    Key(
        "compare_replicas", p.steps, allowed="auto, off or a whole number of steps", default="auto",
        help="steps between comparisons of a part of what is equal on all ranks under DDP; auto: 10; off: none",
    ),
    Key(
        "on_divergence", p.one_of(*_ANSWERS[1:]), allowed="warn, stop or rollback", default="warn",
        help="when replicas differ: warn, stop, or rollback to a healthy checkpoint from before",
    ),
    Key(
        "on_difference", p.one_of("continue", "stop"), allowed="continue or stop", default="continue",
        help="when a step made again after a resume is another one than before: continue, and say so; or stop",
    ),
    Key(
        "verify_resume", p.one_of("auto", "on", "off"), allowed="auto, on or off", default="auto",
        help="make steps again that prove a resume: after a kill from one snapshot further back where none would be"
             " made again, at a stop by one step more than is saved: on; auto: where these steps are cheap; off: never",
    ),
    Key(
        "memory_interval", p.steps, allowed="a whole number of steps, auto, or 0 for off", default="auto",
        help="steps between snapshots in memory; auto: as few as cost less than 1 % of the time; 0: none",
    ),
    Key(
        "peer_interval", p.steps, allowed="a whole number of steps, auto, or 0 for off", default="auto",
        help="steps between copies of snapshots to another node; auto: as few as cost less than 1 % of the time; 0:"
             " none",
    ),
    Key(
        "peer_bandwidth", p.bandwidth, allowed="a rate such as 200MB/s or 1.5GiB/s, or off", default="off",
        help="bytes a second that a node may send to another one for copies; off: as fast as the network takes them",
        show=shown.rate,
    ),
    Key(
        "storage_interval", p.steps_or_seconds, allowed="a number of steps, a duration such as 10m, or off",
        default="10m",
        help="steps (a plain number) or time (10m) between checkpoints on storage; off: none",
        show=shown.interval,
    ),
    Key(
        "keep", p.whole(1), allowed="a whole number, 1 or more", default="5",
        help="how many checkpoints to keep on storage: the newest",
    ),
    Key(
        "keep_every", p.steps, allowed="a whole number of steps, or off", default="off",
        help="keep every checkpoint whose step is a multiple of this for ever besides; off: none",
        show=shown.or_off,
    ),
    Key(
        "storage_bandwidth", p.bandwidth, allowed="a rate such as 200MB/s or 1.5GiB/s, or off", default="off",
        help="bytes a second that saving beside the training may write; off: as fast as storage takes them",
        show=shown.rate,
    ),
    Key(
        "warm", p.switch_or_auto, allowed="auto, true or false", default="auto",
        help="fork ranks from a process that has imported torch already; auto: where that can be, and say nothing"
             " where it cannot",
        switch=True,
    ),
    Key(
        "preload", p.modules, allowed="auto, or names of modules with commas between them, or a list of them",
        default=None,
        help="modules that the warm process imports besides torch: none that change between attempts; auto: what the"
             " script imports at its top, once the first attempt has begun",
        show=shown.items,
    ),
    Key(
        "auto_attach", p.switch, allowed=_YES_NO, default="false",
        help="attach to a framework (Hugging Face's Trainer, Lightning) in a script that does not do so by itself",
        switch=True,
    ),
    Key(
        "fresh", p.switch, allowed=_YES_NO, default="false",
        help="begin anew, whatever earlier runs left; repeated after a stop or a crash, the command goes on",
        switch=True,
    ),
    Key(
        "load_checkpoint", p.step_or_place, allowed="a path, an address such as s3://bucket/prefix, or the number of a"
        " step", default=None,
        help="what to begin with: a checkpoint (or a folder of them, or a store) of another job, or weights that"
             " another library wrote, used at the first start only; or one of this job's own, by its step: to go back"
             " to",
        show=shown.path,
    ),
    Key(
        "resume_training", p.switch, allowed=_YES_NO, default="true",
        help="false: of `load_checkpoint` take the weights only, and begin at step 0",
        switch=True,
    ),
    Key(
        "data_checkpoint_path", p.path, allowed=_FOLDER, default=None,
        help="ChatLearn's name of `checkpoint_dir`: data progress is saved there, in one commit with the models",
    ),
    Key(
        "enable_resume_training", p.switch, allowed=_YES_NO, default="true",
        help="ChatLearn's: false is `fresh: true`",
        switch=True,
    ),
    Key(
        "hosts", hosts.host_list, allowed="hosts such as a,b,user@c or a:8,b:8", default=None,
        help="start an agent on each of these hosts by ssh, and end as they do: a,b,user@c, or a:8,b:8 with their"
             " ranks",
        yaml=False,
    ),
    Key(
        "hostfile", p.path, allowed=_FOLDER, default=None,
        help="like --hosts, the hosts in a file: a line each, as `a`, `a:8` or `a slots=8`",
        yaml=False,
    ),
    Key(
        "ssh", hosts.ssh_command, allowed="a program and its options", default="ssh",
        help="how --hosts are reached: a program that takes ssh's options, and options for it",
        yaml=False,
    ),
    Key(
        "omp_threads", p.threads, allowed="auto or a whole number, 1 or more", default="auto",
        help="OMP_NUM_THREADS of a rank; auto: 1 where there are several ranks and the environment does not say",
        show=shown.or_auto,
    ),
)  # fmt: skip
