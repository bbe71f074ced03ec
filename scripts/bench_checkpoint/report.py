"""The figures as Markdown: medians, and in brackets the least and the largest value of all rounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from first_restore import WAYS
from tables import as_table, spread

Run = dict[str, Any]

# What is compared, with what, and the share of its speed that is wanted.
_AGAINST = [
    ("snapshot", "copy of a rank's share", ">= 90 %"),
    ("restore from memory", "copy of the state", ">= 90 %"),
    ("restore from memory", "mapping and copying", ""),
    ("persisting", "cp and fsync", ">= 90 %"),
    ("verified restore from storage, cold", "reading, cold", ">= 90 %"),
    ("verified restore from storage, cached", "reading, cached", ">= 90 %"),
]
_OTHERS = ("torch.save", "dcp.save", "dcp.async_save")


def render(found: dict[str, Any]) -> str:
    """Return all tables."""
    runs: list[Run] = found["runs"]
    loads = f"load {found['load_before'][0]:.1f} before, {found['load_after'][0]:.1f} after"
    of_jobs = [_stalls(runs), _share(runs), _speeds(runs), _memory(runs)] if runs else []
    return "\n\n".join([f"{found['machine']}; {loads}.", *of_jobs, _first(found["first"])])


def _name(run: Run) -> str:
    what = "example job" if run["what"] == "gpt" else f"{run['what']} MiB"
    return f"{what}, {run['ranks']} rank{'s' if run['ranks'] > 1 else ''}"


def _ms(values: list[float]) -> str:
    return spread(values, "ms", 1000)


def _percent(values: list[float]) -> str:
    return spread(values, "%", 100)


def _stalls(runs: list[Run]) -> str:
    rows = [["a training step waits for a save", "step", "ours", *_OTHERS, "ours is so many times less"]]
    for run in runs:
        found = {name: median(values) for name, values in run["stalls"]["stalls"].items()}
        times = ", ".join(f"{found[name] / found['ours']:.0f}" for name in _OTHERS)
        step = _ms(run["stalls"]["steps"][""])
        rows.append([_name(run), step, *(_ms(run["stalls"]["stalls"][name]) for name in ("ours", *_OTHERS)), times])
    return as_table(rows)


def _share(runs: list[Run]) -> str:
    rows = [["a snapshot every step", "stall, share of the step", "the step beside it is longer by"]]
    for run in runs:
        found = run["stalls"]
        steps = found["steps"]
        stalls = [stall / plain for stall, plain in zip(found["stalls"]["ours"], steps[""], strict=True)]
        longer = [after / plain - 1 for after, plain in zip(steps["ours"], steps[""], strict=True)]
        rows.append([_name(run), _percent(stalls), _percent(longer)])
    return as_table(rows)


def _speeds(runs: list[Run]) -> str:
    rows = [["speed", *(_name(run) for run in runs), "wanted"]]
    for name, against, wanted in _AGAINST:
        row = [f"{name}, against {against}"]
        for run in runs:
            mine = run["copies"]["seconds"][name]
            other = run["copies"]["seconds"][against]
            row.append(_percent([b / a for a, b in zip(mine, other, strict=True)]))
        rows.append([*row, wanted])
    return as_table(rows)


def _first(found: Mapping[int, Mapping[str, list[float]]]) -> str:
    rows = [["first restore of a process", *WAYS, "times as fast as the copy", "wanted"]]
    for mib, by_way in found.items():
        copied, restored = (by_way[way] for way in WAYS)
        times = [copy / restore for copy, restore in zip(copied, restored, strict=True)]
        rows.append([f"{mib} MiB", _ms(copied), _ms(restored), spread(times, "", 1), ">= 0.9"])
    return as_table(rows)


def _memory(runs: list[Run]) -> str:
    rows = [["memory", "state", "a slot, on the node", "times the state", "slots"]]
    for run in runs:
        found = run["copies"]
        times = found["slot_bytes"] / found["state_bytes"]
        mib = [f"{found[key] / 2**20:.1f} MiB" for key in ("state_bytes", "slot_bytes")]
        rows.append([_name(run), *mib, f"{times:.3f}", str(found["slots"])])
    return as_table(rows)
