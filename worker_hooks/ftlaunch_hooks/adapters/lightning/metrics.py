"""Save and restore what self.log() and torchmetrics have gathered in an epoch, so that its values cover all its steps.

Only this module touches what is private in Lightning's loggers of metrics; `check` refuses a version that lacks it.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members
from ftlaunch_hooks.process.say import say

_KNOWN = "Lightning 2.6"
_DICTS = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")
_PLACE = ("_current_fx", "_first_loop_iter")
_OF_ENTRY = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "dataloader_idx")
_VALUES = ("value", "cumulated_batch_size", "_forward_cache", "_computed", "_update_count", "has_reset")
_GROUPED = (
    "self.log(sync_dist_group=...) names a group of ranks that cannot be saved: what was logged with it in the epoch of"
    " the resume is not exact"
)


def check(trainer: Any) -> None:
    """Raise AttachError where this version of Lightning keeps logged values elsewhere."""
    check_members(trainer, "_logger_connector", _KNOWN)
    check_members(trainer._logger_connector, " ".join(_DICTS + _PLACE), _KNOWN)
    check_members(trainer.fit_loop.epoch_loop, "_results", _KNOWN)
    check_members(trainer.lightning_module, "_metric_attributes", _KNOWN)
    check_members(_home(trainer), "_ResultMetric _Metadata _Sync", _KNOWN)


def _home(trainer: Any) -> Any:
    """Return the module of Lightning's classes of results, of whichever package the script uses."""
    return sys.modules[type(trainer.fit_loop.epoch_loop._results).__module__]


def state(trainer: Any) -> dict[str, Any]:
    """Return the gathered values at a boundary."""
    connector = trainer._logger_connector
    return {
        "last": {name: dict(getattr(connector, name)) for name in _DICTS},
        "place": {name: getattr(connector, name) for name in _PLACE},
        "entries": {key: _entry(metric) for key, metric in trainer.fit_loop.epoch_loop._results.items()},
        "torchmetrics": {path: _state_of(metric) for path, metric in _torchmetrics(trainer.lightning_module)},
    }


def restore(trainer: Any, saved: dict[str, Any]) -> None:
    """Restore the values that `state` returned."""
    connector = trainer._logger_connector
    for name in _DICTS:
        setattr(connector, name, saved["last"][name])
    for name in _PLACE:
        setattr(connector, name, saved["place"][name])
    metrics = dict(_torchmetrics(trainer.lightning_module))
    for path, values in saved["torchmetrics"].items():
        _put_back(metrics[path], values)
    results = trainer.fit_loop.epoch_loop._results
    results.clear()
    for key, entry in saved["entries"].items():
        results[key] = _restored_entry(entry, trainer)


# --- self.log() ---------------------------------------------------------------------------------------------------


def _entry(metric: Any) -> dict[str, Any]:
    """Return the state of one entry of self.log()."""
    meta = metric.meta
    sync = meta.sync
    entry = {name: getattr(meta, name) for name in _OF_ENTRY}
    entry |= {"fx": meta.fx, "name": meta.name, "reduce": meta.reduce_fx.__name__, "attribute": meta.metric_attribute}
    entry |= {"sync": sync.should, "rank_zero_only": sync.rank_zero_only, "grouped": sync.group is not None}
    held = _VALUES if metric.is_tensor else _VALUES[2:]
    return entry | {"values": {name: vars(metric)[name] for name in held if name in vars(metric)}}


def _restored_entry(entry: dict[str, Any], trainer: Any) -> Any:
    """Make an entry as self.log() would, with the values that were gathered."""
    home = _home(trainer)
    own = {name: entry[name] for name in (*_OF_ENTRY, "fx", "name")}
    meta = home._Metadata(**own, reduce_fx=entry["reduce"], metric_attribute=entry["attribute"])
    meta.sync = home._Sync(fn=trainer.strategy.reduce, _should=entry["sync"], rank_zero_only=entry["rank_zero_only"])
    if entry["grouped"]:
        say(_GROUPED)
    metric = home._ResultMetric(meta, "value" in entry["values"])
    if not metric.is_tensor:
        metric.value = attrgetter(entry["attribute"])(trainer.lightning_module)
    vars(metric).update(entry["values"])
    return metric


# --- torchmetrics -------------------------------------------------------------------------------------------------


def torchmetrics_of(module: Any) -> list[Any]:
    """Return the metrics whose values `state` saves."""
    found = _torchmetrics(module)
    if found and module._metric_attributes is None:  # the module would do this when it first logs a metric
        module._metric_attributes = {id(metric): path for path, metric in found}
    return [metric for _, metric in found]


def _torchmetrics(module: Any) -> list[tuple[str, Any]]:
    """Return the metrics within a module with their paths; each metric is itself a module."""
    kind = sys.modules["torchmetrics"].Metric  # Lightning has imported torchmetrics
    return [(path, submodule) for path, submodule in module.named_modules() if isinstance(submodule, kind)]


def _state_of(metric: Any) -> dict[str, Any]:
    held = {name: getattr(metric, name) for name in metric._defaults}
    return held | {name: vars(metric)[name] for name in ("_update_count", "_computed", "_forward_cache")}


def _put_back(metric: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(metric, name, value)
