"""From flags, job spec, environment and defaults, in that order, to one frozen JobSpec."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ftlaunch.spec.checks import check_target, why_no_notice, why_not_writable
from ftlaunch.spec.errors import Given, Origin, RefusedError, SpecError, one_line, shown
from ftlaunch.spec.job_spec import PARTS, JobSpec, TargetKind
from ftlaunch.spec.key import Key
from ftlaunch.spec.keys import OPTIONS, SETTINGS, YAML_KEYS
from ftlaunch.spec.nodes import meeting
from ftlaunch.spec.nodes.hosts import from_hosts
from ftlaunch.spec.nodes.nodes_spec import NodesSpec
from ftlaunch.spec.parsing.hosts import host_file
from ftlaunch.spec.yaml_file import read_spec_file
from ftlaunch.system.resources import count_cpus, count_gpus
from ftlaunch_contract import saving_request
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import default_job_id

_Layer = dict[str, Given]


def is_spec_file(target: str) -> bool:
    """Whether a target on the command line is a job spec rather than a script."""
    return target.endswith((".yaml", ".yml"))


def resolve(target: str, args: Sequence[str], flags: Mapping[str, str], environ: Mapping[str, str]) -> JobSpec:
    """The job that `ftlaunch FLAGS TARGET ARGS` asks for; `flags` maps key names to what was written.

    Reads the spec file and looks at the disk, makes nothing. Raises SpecError.
    """
    layers = [_flag_layer(flags), _environment_layer(environ)]
    if is_spec_file(target) and _wanted_kind(layers) == "script":
        in_file = _file_layer(target, environ)
        kind, target = _target_of_file(target, in_file)
        args = args or (in_file["args"].value if "args" in in_file else ())
        layers.insert(1, in_file)
    else:
        kind = _wanted_kind(layers)
    asked = _merged(layers)
    hosts = _hosts(asked)
    asked |= from_hosts(asked, *hosts) if hosts else meeting.from_slurm(asked, environ)
    _check_combinations(asked)
    spec = _build(kind, target, tuple(args), asked, environ)
    check_target(kind, target, environ)
    _check_devices(spec, asked, environ)
    if (preempt := spec.launch.preempt_when) is not None and (reason := why_no_notice(preempt)):
        raise asked["preempt_when"].error("preempt_when", reason)
    for name in ("run_dir", "checkpoint_dir", "log_dir"):
        if reason := why_not_writable(getattr(spec, name)):
            raise SpecError(f"cannot use {one_line(getattr(spec, name))} as `{name}`: {reason}")
    return spec


def asked_of(path: str, raws: Mapping[str, object], environ: Mapping[str, str]) -> _Layer:
    """What the job spec `raws`, read from `path`, will ask for on another machine with these variables.

    Looks at nothing of this machine. Raises SpecError.
    """
    in_file = _in_our_words({name: _parsed(YAML_KEYS[name], raw, Origin("file", path)) for name, raw in raws.items()})
    _target_of_file(path, in_file)
    asked = _merged([in_file, _environment_layer(environ)])
    _check_combinations(asked)
    return asked


def _parsed(key: Key, raw: object, origin: Origin) -> Given:
    try:
        return Given(key.read(raw), raw, origin)
    except RefusedError as refused:
        raise origin.error(key.name + refused.at, refused.given, str(refused.allowed)) from None


def _flag_layer(flags: Mapping[str, str]) -> _Layer:
    layer = {name: _parsed(OPTIONS[name], raw, Origin("flag")) for name, raw in flags.items()}
    if "enable_resume_training" in layer and layer["enable_resume_training"].value:
        layer.setdefault("fresh", layer["enable_resume_training"]._replace(value=False))  # whatever the job spec says
    return _with_grace(_in_our_words(layer))


def _file_layer(path: str, environ: Mapping[str, str]) -> _Layer:
    raws = read_spec_file(path, environ)
    return _in_our_words({name: _parsed(YAML_KEYS[name], raw, Origin("file", path)) for name, raw in raws.items()})


def _in_our_words(layer: _Layer) -> _Layer:
    """Replace ChatLearn's keys by ours, which have the same meaning."""
    folder, resuming = layer.pop("data_checkpoint_path", None), layer.pop("enable_resume_training", None)
    if folder is not None and layer.setdefault("checkpoint_dir", folder).value != folder.value:
        ours = one_line(layer["checkpoint_dir"].raw)
        raise folder.error("data_checkpoint_path", f"it is another name of `checkpoint_dir`, which is {ours}; give one")
    if resuming is not None and not resuming.value:
        layer["fresh"] = resuming._replace(value=True)
    return layer


def _environment_layer(environ: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for name, key in SETTINGS.items():
        variable = next((variable for variable in key.env if variable in environ), None)
        if variable is not None:
            layer[name] = _parsed(key, environ[variable], Origin("environment", variable))
    return _with_grace(layer)


def _with_grace(layer: _Layer) -> _Layer:
    """torchrun's shutdown timeout is our grace, unless the same layer gives the grace itself."""
    if "shutdown_timeout" in layer:
        given = layer["shutdown_timeout"]
        layer.setdefault("grace", given._replace(value=float(given.value)))
    return layer


def _merged(layers: Sequence[_Layer]) -> _Layer:
    """For every setting the value of the first layer that has one, else its default."""
    asked = {name: Given(key.default_value, key.default, Origin("default")) for name, key in SETTINGS.items()}
    for layer in reversed(layers):
        asked.update(layer)
    return asked


def _hosts(asked: _Layer) -> tuple[Given, str] | None:
    """The hosts on which agents are to be started, and the option that names them."""
    listed, file = asked["hosts"], asked["hostfile"]
    if file.value is None:
        return None if listed.value is None else (listed, "hosts")
    if listed.value is not None:
        raise file.error("hostfile", "`--hosts` names hosts, too; give one of them")
    try:
        return file._replace(value=host_file(Path(file.value).read_text())), "hostfile"
    except RefusedError as refused:
        line = "" if refused.given is None else f"a line says {shown(refused.given)}; "
        raise SpecError(f"cannot read {one_line(file.value)}: {line}{refused.allowed}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecError(f"cannot read {one_line(file.value)}: {str(reason).lower()}") from None


def _wanted_kind(layers: Sequence[_Layer]) -> TargetKind:
    """What torchrun's switches make of the target: --run-path over --no-python, which excludes --module."""
    asked = _merged(layers)
    if asked["run_path"].value:
        return "script"
    if asked["no_python"].value:
        if asked["module"].value:
            raise asked["no_python"].error("no_python", "it excludes `--module`; use one of them")
        return "program"
    return "module" if asked["module"].value else "script"


def _target_of_file(path: str, layer: _Layer) -> tuple[TargetKind, str]:
    kinds: tuple[TargetKind, ...] = ("script", "module", "program")
    named = [kind for kind in kinds if kind in layer]
    if not named:
        raise SpecError(f"cannot read {path}: it names no `script`, `module` or `program` to run")
    if len(named) > 1:
        both = " and ".join(f"`{kind}`" for kind in named)
        raise SpecError(f"cannot read {path}: it names {both}; only one of them can be run")
    # What to run is no setting: leave it out of the layers that are merged.
    return named[0], layer.pop(named[0]).value


def _check_combinations(asked: _Layer) -> None:
    weights_only = not asked["resume_training"].value
    if weights_only and asked["load_checkpoint"].value is None:
        reason = "only the weights of what? give `load_checkpoint` too; `fresh` starts without any"
        raise asked["resume_training"].error("resume_training", reason)
    first, most = asked["backoff_first"], asked["backoff_max"]
    if first.value > most.value and first.origin.kind != "default":
        raise first.error("backoff_first", f"it is more than `backoff_max`, which is {most.raw}")


def _check_devices(spec: JobSpec, asked: _Layer, environ: Mapping[str, str]) -> None:
    visible = {**environ, **spec.launch.env}.get("CUDA_VISIBLE_DEVICES")
    if spec.launch.virtual_local_rank and visible is not None and len(visible.split(",")) < spec.launch.nproc:
        reason = f"{spec.launch.nproc} ranks want a GPU each, and CUDA_VISIBLE_DEVICES is {one_line(visible)}"
        raise asked["virtual_local_rank"].error("virtual_local_rank", reason)


def _build(
    kind: TargetKind,
    target: str,
    args: tuple[str, ...],
    asked: _Layer,
    environ: Mapping[str, str],
) -> JobSpec:
    value = {name: given.value for name, given in asked.items()}
    cwd = _current_directory()
    env = value["env"] or {}
    job_id = value["job_id"] or default_job_id(cwd, kind, target, args, environ)
    nodes = meeting.nodes_spec(asked, environ)
    run_dir = Path(cwd, value["run_dir"] or _default_run_dir(job_id, value, nodes, environ))
    checkpoint_dir = Path(cwd, value["checkpoint_dir"] or run_dir / "checkpoints")
    nproc = _nproc(asked["nproc_per_node"], {**environ, **env})
    derived = {
        "kind": kind, "target": target, "args": args, "env": env, "job_id": job_id, "nproc": nproc,
        "run_dir": run_dir,
        "checkpoint_dir": checkpoint_dir,
        "load_checkpoint": _load_checkpoint(value["load_checkpoint"], checkpoint_dir, cwd),
        "log_dir": Path(cwd, value["log_dir"], job_id) if value["log_dir"] else run_dir / "logs",
        "run_id": (not value["standalone"] and value["rdzv_id"]) or job_id,
        "master_port": _master_port(value, nodes),
        "fault_rules": value["fault_rules"] or (),
        "backoff_first": min(value["backoff_first"], value["backoff_max"]),
        "omp_threads": _omp_threads(value["omp_threads"], nproc, {**environ, **env}),
        "tee_ranks": _tee_ranks(value, nproc),
        "stop_signals": value["signals_to_handle"],
        "python": value["python"] or sys.executable,
        "notify": value["notify"] or (),
        "metrics": value["metrics"] and value["metrics"].in_folder(cwd),
        "preload": value["preload"] or (),
        "given": {
            name: str(SETTINGS[name].show(value[name])) for name in saving_request.VARIABLES if _is_given(asked, name)
        },
    }  # fmt: skip
    every = {**value, **derived, **vars(nodes)}
    parts = {name: part(**{item.name: every[item.name] for item in fields(part)}) for name, part in PARTS.items()}
    return JobSpec(**parts, **{item.name: every[item.name] for item in fields(JobSpec) if item.name not in PARTS})


def _default_run_dir(job_id: str, value: Mapping[str, Any], nodes: NodesSpec, environ: Mapping[str, str]) -> Path:
    """Return where a job's run dir is, with the checkpoints in it, unless it is told.

    Several nodes share it: MindSpore Transformers' users name what their nodes share in SHARED_PATHS, the uppermost
    directory first.
    """
    shared = environ.get("SHARED_PATHS", "").split(",")[0].strip()
    is_used = shared and nodes.several and value["checkpoint_dir"] is None
    return Path(shared if is_used else "", "runs", job_id)


def _is_given(asked: _Layer, name: str) -> bool:
    """Whether somebody has decided on a setting: by an option or a variable, or by a key that is no default.

    A spec may list every default (configs/default.yaml, and what --dry-run prints).
    """
    found = asked[name]
    return found.asked and (found.origin.kind != "file" or found.value != SETTINGS[name].default_value)


def _master_port(value: Mapping[str, Any], nodes: NodesSpec) -> int | None:
    """MASTER_PORT of the ranks: never the port at which several nodes meet, which is taken."""
    meets = nodes.several and (nodes.backend == "static" or value["master_port"] == nodes.port)
    return None if value["standalone"] or meets else value["master_port"]


def _load_checkpoint(asked: int | str | None, checkpoint_dir: Path, cwd: str) -> Path | None:
    if asked is None:
        return None
    return layout.iteration_dir(checkpoint_dir, asked) if isinstance(asked, int) else Path(cwd, asked)


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise SpecError(f"cannot tell the current directory: {str(error.strerror).lower()}") from None


def _nproc(given: Given, environ: Mapping[str, str]) -> int:
    if isinstance(given.value, int):
        return given.value
    gpus = 0 if given.value == "cpu" else count_gpus(environ)
    if given.value == "gpu" and gpus == 0:
        raise given.error("nproc_per_node", "there is no GPU to be seen; use `cpu`, `auto` or a number")
    return gpus or count_cpus()


def _omp_threads(asked: int | str, nproc: int, environ: Mapping[str, str]) -> int | None:
    """torchrun's rule: 1 where there are several ranks and the environment does not say."""
    if isinstance(asked, int):
        return asked
    return 1 if nproc > 1 and "OMP_NUM_THREADS" not in environ else None


def _tee_ranks(value: Mapping[str, Any], nproc: int) -> frozenset[int] | None:
    """Local ranks to follow: those that tee names, else those not wholly redirected; then the filter."""

    def choice(streams: int | dict[int, int], rank: int) -> int:
        return streams if isinstance(streams, int) else streams.get(rank, 0)

    ranks = frozenset(range(nproc))
    if value["tee"]:
        follow = frozenset(rank for rank in ranks if choice(value["tee"], rank))
    elif value["redirects"]:
        follow = frozenset(rank for rank in ranks if choice(value["redirects"], rank) != 3)
    elif value["local_ranks_filter"] is None:
        return None
    else:
        follow = ranks
    return follow if value["local_ranks_filter"] is None else follow & value["local_ranks_filter"]
