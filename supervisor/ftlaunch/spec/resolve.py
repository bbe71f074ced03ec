"""Resolves flags, job spec, environment and defaults, in that order, to one frozen JobSpec.

`ftlaunch` calls `resolve` once, before anything is started. Settings are collected in layers, one for each origin; the
first layer that has a setting wins. A setting is a `Given`: its value, what was written for it, and where.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ftlaunch.spec.checks import check_target, missing_package, why_no_notice, why_not_writable
from ftlaunch.spec.errors import Given, Origin, RefusedError, SpecError, one_line, shown
from ftlaunch.spec.job_spec import LOADED, PARTS, JobSpec, TargetKind
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
from ftlaunch_contract.protocol import default_job_id, scheme_of

_BOTH_STREAMS = 3
"""torchrun's number for stdout and stderr together, where 1 is stdout and 2 is stderr"""

_Layer = dict[str, Given]
"""settings of one origin, or of all merged, by name"""


def is_spec_file(target: str) -> bool:
    """Return whether a target on the command line is a job spec rather than a script."""
    return target.endswith((".yaml", ".yml"))


def resolve(target: str, args: Sequence[str], flags: Mapping[str, str], environ: Mapping[str, str]) -> JobSpec:
    """Return the job that `ftlaunch FLAGS TARGET ARGS` means. Files are read and checked, but nothing is made.

    Args:
        target: path of a script or a job spec, or name of a module or program.
        args: arguments for the target.
        flags: what was written for each option, by name of the key.
        environ: environment of this process.

    Raises:
        SpecError: the job cannot be started as requested.
    """
    layers = [_flag_layer(flags), _environment_layer(environ)]
    if is_spec_file(target) and _wanted_kind(layers) == "script":
        in_file = _file_layer(target, environ)
        kind, target = _target_of_file(target, in_file)
        args = args or (in_file["args"].value if "args" in in_file else ())
        layers.insert(1, in_file)
    else:
        kind = _wanted_kind(layers)
    settings = _merged(layers)
    named_hosts = _hosts(settings)
    # Who is to meet whom follows from the hosts, else from what a scheduler has put into the environment.
    if named_hosts is not None:
        hosts, option = named_hosts
        settings |= from_hosts(settings, hosts, name=option)
    else:
        settings |= meeting.from_scheduler(settings, environ)
    _check_combinations(settings)
    spec = _build(kind, target, args=tuple(args), settings=settings, environ=environ)
    check_target(kind, target, environ)
    _check_devices(spec, settings, environ)
    _check_store(spec, settings)
    _check_load(spec)
    preempt_when = spec.launch.preempt_when
    no_notice = why_no_notice(preempt_when) if preempt_when is not None else None
    if no_notice:
        raise settings["preempt_when"].error("preempt_when", no_notice)
    for name in ("run_dir", "checkpoint_dir", "log_dir"):
        directory = getattr(spec, name)
        if reason := why_not_writable(directory):
            raise SpecError(f"cannot use {one_line(directory)} as `{name}`: {reason}")
    return spec


def asked_of(path: str, raws: Mapping[str, object], environ: Mapping[str, str]) -> _Layer:
    """Return the settings that a job spec will have on another machine. Nothing of this machine is examined.

    Args:
        path: path of the job spec, for error messages.
        raws: what was written for each key.
        environ: environment on the other machine.

    Raises:
        SpecError: the settings are not allowed.
    """
    in_file = _in_our_words({name: _parsed(YAML_KEYS[name], raw, Origin("file", path)) for name, raw in raws.items()})
    _target_of_file(path, in_file)
    settings = _merged([in_file, _environment_layer(environ)])
    _check_combinations(settings)
    return settings


def _parsed(key: Key, raw: object, origin: Origin) -> Given:
    """Parse what was written for a key. Raises SpecError."""
    try:
        return Given(key.read(raw), raw, origin)
    except RefusedError as refused:
        raise origin.error(key.name + refused.at, refused.given, str(refused.allowed)) from None


def _flag_layer(flags: Mapping[str, str]) -> _Layer:
    """Return the settings of the command line. Raises SpecError."""
    layer = {name: _parsed(OPTIONS[name], raw, Origin("flag")) for name, raw in flags.items()}
    if "enable_resume_training" in layer and layer["enable_resume_training"].value:
        # The option overrules `fresh: true` of the job spec.
        layer.setdefault("fresh", layer["enable_resume_training"]._replace(value=False))
    return _with_grace(_in_our_words(layer))


def _file_layer(path: str, environ: Mapping[str, str]) -> _Layer:
    """Return the settings of a job spec. Raises SpecError."""
    raws = read_spec_file(path, environ)
    return _in_our_words({name: _parsed(YAML_KEYS[name], raw, Origin("file", path)) for name, raw in raws.items()})


def _in_our_words(layer: _Layer) -> _Layer:
    """Replace ChatLearn's keys by our keys with the same meaning, in `layer` itself.

    `enable_resume_training: false` becomes `fresh: true`, whatever the layer says of `fresh`. A true value is dropped;
    on the command line `_flag_layer` has taken it as `fresh: false` before.

    Raises:
        SpecError: `data_checkpoint_path` and `checkpoint_dir` are both given and differ.
    """
    folder = layer.pop("data_checkpoint_path", None)
    resuming = layer.pop("enable_resume_training", None)
    if folder is not None and layer.setdefault("checkpoint_dir", folder).value != folder.value:
        ours = one_line(layer["checkpoint_dir"].raw)
        raise folder.error("data_checkpoint_path", f"it is another name of `checkpoint_dir`, which is {ours}; give one")
    if resuming is not None and not resuming.value:
        layer["fresh"] = resuming._replace(value=True)
    return layer


def _environment_layer(environ: Mapping[str, str]) -> _Layer:
    """Return the settings of environment variables. Raises SpecError."""
    layer: _Layer = {}
    for name, key in SETTINGS.items():
        variable = next((variable for variable in key.env if variable in environ), None)
        if variable is not None:
            layer[name] = _parsed(key, environ[variable], Origin("environment", variable))
    return _with_grace(layer)


def _with_grace(layer: _Layer) -> _Layer:
    """Take torchrun's shutdown timeout as our grace, unless the same layer has a grace of its own."""
    if "shutdown_timeout" in layer:
        given = layer["shutdown_timeout"]
        layer.setdefault("grace", given._replace(value=float(given.value)))
    return layer


def _merged(layers: Sequence[_Layer]) -> _Layer:
    """Return every setting with the value of the first layer that has one, or else with its default."""
    settings = {name: Given(key.default_value, key.default, Origin("default")) for name, key in SETTINGS.items()}
    for layer in reversed(layers):
        settings.update(layer)
    return settings


def _hosts(settings: _Layer) -> tuple[Given, str] | None:
    """Return the hosts on which agents are to be started, and the option that names them; None if there is none.

    Raises:
        SpecError: both options are given, or the file cannot be read.
    """
    listed = settings["hosts"]
    file = settings["hostfile"]
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
    """Return what torchrun's switches make of the target.

    --run-path has precedence over --no-python, which excludes --module.

    Raises:
        SpecError: `no_python` and `module` are both given.
    """
    settings = _merged(layers)
    if settings["run_path"].value:
        return "script"
    if settings["no_python"].value:
        if settings["module"].value:
            raise settings["no_python"].error("no_python", "it excludes `--module`; use one of them")
        return "program"
    return "module" if settings["module"].value else "script"


def _target_of_file(path: str, layer: _Layer) -> tuple[TargetKind, str]:
    """Remove the target from a job spec's layer, and return its kind and name.

    What to run is no setting, so that the merged layers must not contain it.

    Raises:
        SpecError: the job spec names no target, or several.
    """
    kinds: tuple[TargetKind, ...] = ("script", "module", "program")
    named = [kind for kind in kinds if kind in layer]
    if not named:
        raise SpecError(f"cannot read {path}: it names no `script`, `module` or `program` to run")
    if len(named) > 1:
        both = " and ".join(f"`{kind}`" for kind in named)
        raise SpecError(f"cannot read {path}: it names {both}; only one of them can be run")
    return named[0], layer.pop(named[0]).value


def _check_combinations(settings: _Layer) -> None:
    """Check settings that depend on each other. Raises SpecError."""
    weights_only = not settings["resume_training"].value
    if weights_only and settings["load_checkpoint"].value is None:
        reason = "only the weights of what? give `load_checkpoint` too; `fresh` starts without any"
        raise settings["resume_training"].error("resume_training", reason)
    first = settings["backoff_first"]
    most = settings["backoff_max"]
    if first.value > most.value and first.origin.kind != "default":
        raise first.error("backoff_first", f"it is more than `backoff_max`, which is {most.raw}")


def _is_address(place: str | None) -> bool:
    """Return whether a checkpoint dir is the address of a store rather than a folder."""
    return place is not None and scheme_of(place) is not None


def _check_load(spec: JobSpec) -> None:
    """Check that a checkpoint in a store can be begun with. Raises SpecError."""
    if spec.saving.load_address is None:
        return
    if lacks := missing_package(spec.saving.load_address):
        raise SpecError(f"cannot use {one_line(spec.saving.load_address)} as `load_checkpoint`: {lacks}")


def _check_store(spec: JobSpec, settings: _Layer) -> None:
    """Check that a store of checkpoints can be used as the job asks.

    Raises:
        SpecError: there is a cache, or a limit of one, without a store, or a package is missing.
    """
    cache = settings["checkpoint_cache"]
    if spec.saving.checkpoint_store is None:
        if cache.asked:
            reason = "it is the folder beside a store; without one, `checkpoint_dir` names the folder"
            raise cache.error("checkpoint_cache", reason)
        limit = settings["checkpoint_cache_max_size"]
        if limit.value is not None:
            reason = "nothing can be deleted for room without a store as `checkpoint_dir`; `keep` limits the folder"
            raise limit.error("checkpoint_cache_max_size", reason)
    elif lacks := missing_package(spec.saving.checkpoint_store):
        raise SpecError(f"cannot use {one_line(spec.saving.checkpoint_store)} as `checkpoint_dir`: {lacks}")


def _check_devices(spec: JobSpec, settings: _Layer, environ: Mapping[str, str]) -> None:
    """Check that each rank can have a GPU of its own, if the job wants that. Raises SpecError."""
    visible = {**environ, **spec.launch.env}.get("CUDA_VISIBLE_DEVICES")
    if spec.launch.virtual_local_rank and visible is not None and len(visible.split(",")) < spec.launch.nproc:
        reason = f"{spec.launch.nproc} ranks want a GPU each, and CUDA_VISIBLE_DEVICES is {one_line(visible)}"
        raise settings["virtual_local_rank"].error("virtual_local_rank", reason)


def _build(
    kind: TargetKind,
    target: str,
    args: tuple[str, ...],
    settings: _Layer,
    environ: Mapping[str, str],
) -> JobSpec:
    """Return the job spec with all values that follow from settings. Raises SpecError.

    Args:
        kind: kind of the target.
        target: the target.
        args: arguments for the target.
        settings: all settings.
        environ: environment of this process.
    """
    value = {name: given.value for name, given in settings.items()}
    cwd = _current_directory()
    env = value["env"] or {}
    job_id = value["job_id"] or default_job_id(cwd, kind, target, args=args, environ=environ)
    nodes = meeting.nodes_spec(settings, environ)
    run_dir = Path(cwd, value["run_dir"] or _default_run_dir(job_id, value, nodes=nodes, environ=environ))
    store = value["checkpoint_dir"] if _is_address(value["checkpoint_dir"]) else None
    folder = value["checkpoint_dir"] if store is None else value["checkpoint_cache"]
    checkpoint_dir = Path(cwd, folder or run_dir / "checkpoints")
    nproc = _nproc(settings["nproc_per_node"], {**environ, **env})
    derived = {
        "kind": kind,
        "target": target,
        "args": args,
        "env": env,
        "job_id": job_id,
        "nproc": nproc,
        "run_dir": run_dir,
        "checkpoint_dir": checkpoint_dir,
        "checkpoint_store": store,
        **_load_fields(value["load_checkpoint"], checkpoint_dir, store=store, run_dir=run_dir, cwd=cwd),
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
        # Ranks get these in an environment variable, therefore as the texts that a person may write.
        "given": {
            name: str(SETTINGS[name].show(value[name]))
            for name in saving_request.VARIABLES
            if _is_given(settings, name)
        },
    }
    by_field = {**value, **derived, **vars(nodes)}
    parts = {name: part(**{item.name: by_field[item.name] for item in fields(part)}) for name, part in PARTS.items()}
    top = {item.name: by_field[item.name] for item in fields(JobSpec) if item.name not in PARTS}
    return JobSpec(**parts, **top)


def _default_run_dir(job_id: str, value: Mapping[str, Any], nodes: NodesSpec, environ: Mapping[str, str]) -> Path:
    """Return the run dir of a job that does not set one.

    Several nodes need a shared run dir, unless the checkpoints have a directory of their own. Users of MindSpore
    Transformers name what their nodes share in SHARED_PATHS, the uppermost directory first.
    """
    shared = environ.get("SHARED_PATHS", "").split(",")[0].strip()
    is_used = shared and nodes.several and value["checkpoint_dir"] is None
    return Path(shared if is_used else "", "runs", job_id)


def _is_given(settings: _Layer, name: str) -> bool:
    """Return whether somebody has decided on a setting, by an option, a variable, or a key in a job spec.

    A key with its default value does not count, because a job spec may list every default (configs/default.yaml, and
    the output of --dry-run).
    """
    setting = settings[name]
    return setting.asked and (setting.origin.kind != "file" or setting.value != SETTINGS[name].default_value)


def _master_port(value: Mapping[str, Any], nodes: NodesSpec) -> int | None:
    """Return MASTER_PORT of the ranks, or None for a free one. The port at which several nodes meet is not free."""
    is_occupied = nodes.several and (nodes.backend == "static" or value["master_port"] == nodes.port)
    return None if value["standalone"] or is_occupied else value["master_port"]


def _load_fields(
    place: int | str | None, checkpoint_dir: Path, store: str | None, run_dir: Path, cwd: str
) -> dict[str, Path | str | None]:
    """Return the fields of a spec that say with which checkpoint the job begins.

    A step means one of the job's own checkpoints, and so does an address in the job's own store.

    Args:
        place: a step, a path, or an address.
        checkpoint_dir: the job's checkpoint directory.
        store: the address of the job's store.
        run_dir: the job's run dir, in which a checkpoint from elsewhere is kept for the first start.
        cwd: the current directory.
    """
    address = None
    if place is None:
        path = None
    elif isinstance(place, int):
        path = layout.iteration_dir(checkpoint_dir, place)
    elif not _is_address(place):
        path = Path(cwd, place)
    else:
        folder, _, name = place.rpartition("/")
        is_own = store is not None and (place == store or (folder == store and layout.step_of(Path(name)) is not None))
        own = checkpoint_dir if place == store else checkpoint_dir / name
        path = own if is_own else run_dir / LOADED / name
        address = None if is_own else place
    return {"load_checkpoint": path, "load_address": address}


def _current_directory() -> str:
    """Return the current directory. Raises SpecError if it was deleted."""
    try:
        return str(Path.cwd())
    except OSError as error:
        raise SpecError(f"cannot tell the current directory: {str(error.strerror).lower()}") from None


def _nproc(given: Given, environ: Mapping[str, str]) -> int:
    """Return the number of ranks on this node. Raises SpecError."""
    if isinstance(given.value, int):
        return given.value
    gpus = 0 if given.value == "cpu" else count_gpus(environ)
    if given.value == "gpu" and gpus == 0:
        raise given.error("nproc_per_node", "there is no GPU to be seen; use `cpu`, `auto` or a number")
    return gpus or count_cpus()


def _omp_threads(threads: int | str, nproc: int, environ: Mapping[str, str]) -> int | None:
    """Return OMP_NUM_THREADS for the ranks; None leaves the variable as it is.

    For `auto`, torchrun's rule applies: 1 if there are several ranks and the environment does not set the variable.
    """
    if isinstance(threads, int):
        return threads
    return 1 if nproc > 1 and "OMP_NUM_THREADS" not in environ else None


def _tee_ranks(value: Mapping[str, Any], nproc: int) -> frozenset[int] | None:
    """Return the local ranks to follow on the terminal; None if no option says which.

    They are the ranks that `tee` names, or else those that are not wholly redirected. A filter applies to both.
    """

    def choice(streams: int | dict[int, int], rank: int) -> int:
        return streams if isinstance(streams, int) else streams.get(rank, 0)

    ranks = frozenset(range(nproc))
    if value["tee"]:
        follow = frozenset(rank for rank in ranks if choice(value["tee"], rank))
    elif value["redirects"]:
        follow = frozenset(rank for rank in ranks if choice(value["redirects"], rank) != _BOTH_STREAMS)
    elif value["local_ranks_filter"] is None:
        return None
    else:
        follow = ranks
    return follow if value["local_ranks_filter"] is None else follow & value["local_ranks_filter"]
