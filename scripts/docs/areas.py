"""Pictures of the areas of the house, and a table of folders for each: docs/architecture.md shows them in turn.

Boxes hold the first sentence of the folder's docstring, and the arrows of the first picture are the imports that the
code has. Only places, flows and the modules where reading begins are written here. Whatever is written here and is not
in the tree, or the other way round, is a ValueError that names it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from drawing import FAINT, INK, arrow, box, heads, page, words
from house import ROOT, SOURCES, folders, sentence

_MARGIN, _GAP = 20, 12  # pixels, around a picture and between its columns
_LETTER = 5.7  # pixels, of the small print in the mean
_LINE = 13  # pixels, from one line of the small print to the next
_FLOW, _IMPORT = "#1565c0", "#37474f"
_OUTSIDE, _CONTRACT = "#ffffff", "#fff3e0"
_THE_CORE = "Every other folder of ftlaunch: launches ranks on one machine, watches, judges, restarts and saves"


class Place(NamedTuple):
    """Where a box stands in the grid of a picture."""

    column: int
    row: int
    columns: int = 1


class Flow(NamedTuple):
    """An arrow between two boxes.

    Between rows the arrow is vertical, and `at` is its place in columns from the left. Within a row the arrow is
    horizontal, and `at` is its place in pixels below the middle of the row.
    """

    source: str
    target: str
    label: str
    at: float = 0


@dataclass(frozen=True)
class Picture:
    """The folders of one area, and what flows between them."""

    title: str
    fill: str
    top: Path
    places: Mapping[str, Place]
    flows: Sequence[Flow]
    outside: Mapping[str, tuple[Place, str]] = field(default_factory=dict)
    """boxes that are no folders: name -> place and text"""
    unseen: Collection[str] = ()
    """folders that stand in the table alone"""
    column: int = 160
    """width of a column in pixels"""


_FTLAUNCH = SOURCES["ftlaunch"]
AREAS = ("nodes", "views", "tools")
"""folders of the supervisor that are built on the core; every other folder belongs to the core"""

CORE = Picture(
    title="The core: one machine",
    fill="#e3f2fd",
    top=_FTLAUNCH,
    places={
        "spec": Place(0, 0, 2), "cli": Place(3, 0), "history": Place(5, 0, 2),
        "engine": Place(0, 1, 6),
        "ranks": Place(0, 2), "autopsy": Place(1, 2), "policy": Place(2, 2), "health": Place(3, 2),
        "checkpoints": Place(4, 2), "reporting": Place(5, 2, 2),
        "system": Place(0, 3, 2), "common": Place(2, 3), "memory": Place(3, 3, 2), "notify": Place(5, 3, 2),
    },
    flows=(
        Flow("spec", "cli", "one JobSpec"), Flow("history", "cli", "rows, reports"),
        Flow("cli", "engine", "JobSpec", 3.5),
        Flow("engine", "ranks", "start, signal", 0.08), Flow("ranks", "engine", "ends, logs", 0.58),
        Flow("engine", "autopsy", "hung ranks", 1.08), Flow("autopsy", "engine", "who is behind", 1.58),
        Flow("engine", "policy", "events, causes", 2.08), Flow("policy", "engine", "next state, verdict", 2.58),
        Flow("engine", "health", "steps, losses", 3.08), Flow("health", "engine", "late, slow, wrong", 3.58),
        Flow("engine", "checkpoints", "save, resume", 4.08), Flow("checkpoints", "engine", "the step to resume", 4.58),
        Flow("engine", "reporting", "events", 5.4), Flow("reporting", "history", "journal, in the run dir", 6.2),
        Flow("system", "ranks", "processes", 0.4), Flow("memory", "health", "beats, by engine/watch", 3.2),
        Flow("checkpoints", "memory", "holds", 4.15), Flow("memory", "checkpoints", "snapshots", 4.58),
        Flow("reporting", "notify", "notices", 6),
    ),
)  # fmt: skip

NODES = Picture(
    title="nodes: several machines",
    fill="#e8eaf6",
    top=_FTLAUNCH / "nodes",
    column=172,
    places={
        "agent/hosts": Place(0, 0), "agent": Place(2, 0), "channel": Place(4, 0), "agent/head": Place(6, 0),
        "agent/node": Place(2, 1), "channel/etcd": Place(4, 1), "channel/votes": Place(5, 1),
        "peers": Place(0, 2, 3), "cluster": Place(3, 2, 4),
        "peers/plan": Place(0, 3), "peers/held": Place(1, 3), "peers/wire": Place(2, 3),
        "cluster/mirrors": Place(3, 3), "cluster/nodes": Place(4, 3), "cluster/membership": Place(5, 3),
        "cluster/copies": Place(6, 3),
    },
    flows=(
        Flow("agent/hosts", "agent", "orders, by ssh"),
        Flow("agent", "channel", "beats, ends", -14), Flow("channel", "agent", "orders", 18),
        Flow("channel", "agent/head", "beats, ends", -14), Flow("agent/head", "channel", "orders", 18),
        Flow("agent", "agent/node", "start, end", 2.4), Flow("channel", "channel/etcd", "who is head", 4.4),
        Flow("channel", "channel/votes", "or the voters", 5.4),
        Flow("agent/node", "peers", "what to copy", 2.4), Flow("agent/head", "cluster", "the core's engine", 6.4),
        Flow("peers", "peers/plan", "who keeps what", 0.4), Flow("peers", "peers/held", "files in memory", 1.4),
        Flow("peers", "peers/wire", "bytes", 2.4),
        Flow("cluster", "cluster/mirrors", "ranks, pages", 3.4), Flow("cluster", "cluster/nodes", "one node", 4.4),
        Flow("cluster", "cluster/membership", "places, leases", 5.4),
        Flow("cluster", "cluster/copies", "steps in memory", 6.4),
    ),
)  # fmt: skip

VIEWS = Picture(
    title="views: what shows a job",
    fill="#e0f7fa",
    top=_FTLAUNCH / "views",
    column=200,
    places={
        "commands": Place(0, 0), "report_page": Place(0, 1), "digest": Place(1, 1), "dashboard": Place(2, 1),
        "top": Place(3, 1), "metrics": Place(4, 1),
        "report_page/gathering": Place(0, 2), "dashboard/static": Place(2, 2), "top/fullscreen": Place(3, 2),
        "metrics/traces": Place(4, 2),
    },
    outside={
        "a job": (Place(1, 0, 4), "Its run dir (journal, logs, autopsies), its control socket, its pages: the core's"),
    },
    flows=(
        Flow("commands", "report_page", "report --html", 0.4), Flow("a job", "digest", "many run dirs", 1.4),
        Flow("a job", "dashboard", "run dirs", 2.1), Flow("dashboard", "a job", "stop, save", 2.58),
        Flow("a job", "top", "status, stacks", 3.4), Flow("a job", "metrics", "journal, pages, status", 4.3),
        Flow("report_page", "report_page/gathering", "lines", 0.4),
        Flow("dashboard", "dashboard/static", "to browsers", 2.4),
        Flow("top", "top/fullscreen", "one frame", 3.4), Flow("metrics", "metrics/traces", "restarts", 4.4),
    ),
    unseen=("report_page/static",),
)  # fmt: skip

TOOLS = Picture(
    title="tools: what needs no running job",
    fill="#f3e5f5",
    top=_FTLAUNCH / "tools",
    column=230,
    places={
        "commands": Place(0, 0, 4), "preflight": Place(0, 1), "rehearsal": Place(1, 1), "planner": Place(2, 1),
        "kubernetes": Place(3, 1),
    },
    outside={
        "the machine": (Place(0, 2), "/proc, disks, network, one probe for each rank"),
        "short jobs": (Place(1, 2), "The core, started with run dirs of their own"),
        "the policy": (Place(2, 2), "The core's restart policy, in simulated trainings"),
        "manifests": (Place(3, 2), "YAML for kubectl"),
    },
    flows=(
        Flow("commands", "preflight", "check", 0.4), Flow("commands", "rehearsal", "rehearse", 1.4),
        Flow("commands", "planner", "plan", 2.4), Flow("commands", "kubernetes", "kubernetes", 3.4),
        Flow("the machine", "preflight", "facts", 0.4), Flow("rehearsal", "short jobs", "faults", 1.4),
        Flow("the policy", "planner", "verdicts", 2.4), Flow("kubernetes", "manifests", "objects", 3.4),
    ),
)  # fmt: skip

HOOKS = Picture(
    title="The hooks: inside each rank, on the contract",
    fill="#e8f5e9",
    top=ROOT / "worker_hooks",
    column=150,
    places={
        "ftlaunch_hooks/adapters": Place(4, 0, 4), "ftlaunch_hooks/job": Place(0, 1, 8),
        "ftlaunch_hooks/snapshots": Place(0, 2, 2), "ftlaunch_hooks/standalone": Place(2, 2),
        "ftlaunch_hooks/observe": Place(3, 2), "ftlaunch_hooks/passes": Place(4, 2),
        "ftlaunch_hooks/state": Place(5, 2),
        "ftlaunch_hooks/storage": Place(6, 2, 2), "ftlaunch_hooks/process": Place(7, 3),
        "ftlaunch_hooks/devices": Place(1, 3), "ftlaunch_hooks/programs": Place(2, 3, 2),
        "ftlaunch_hooks/data": Place(4, 3), "ftlaunch_hooks/tensors": Place(5, 3),
        "ftlaunch_contract/pages": Place(0, 4, 2), "ftlaunch_contract/files": Place(2, 4, 2),
        "ftlaunch_contract/schedulers": Place(4, 4, 2),
        "ftlaunch_contract/checkpoint": Place(6, 4, 2),
    },
    outside={"the script": (Place(0, 0, 4), "The training loop of the user")},
    flows=(
        Flow("the script", "ftlaunch_hooks/job", "attach(), steps()", 1.4),
        Flow("ftlaunch_hooks/adapters", "ftlaunch_hooks/job", "the public API", 5.4),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/snapshots", "each boundary", 0.8),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/standalone", "no supervisor", 2.35),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/observe", "steps, losses", 3.35),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/passes", "batches", 4.4),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/state", "attached objects", 5.35),
        Flow("ftlaunch_hooks/job", "ftlaunch_hooks/storage", "restore", 6.4),
        Flow("ftlaunch_hooks/snapshots", "ftlaunch_hooks/devices", "private copies", 1.35),
        Flow("ftlaunch_hooks/snapshots", "ftlaunch_contract/pages", "bytes, then the step", 0.35),
        Flow("ftlaunch_hooks/passes", "ftlaunch_hooks/data", "positions", 4.4),
        Flow("ftlaunch_hooks/state", "ftlaunch_hooks/tensors", "keys, dtypes", 5.35),
        Flow("ftlaunch_contract/checkpoint", "ftlaunch_hooks/storage", "checkpoints", 6.4),
    ),
)  # fmt: skip

_IMPORTERS = {
    "ftlaunch_ray": Place(0, 0), "nodes": Place(0, 1), "views": Place(1, 1), "tools": Place(2, 1),
    "adapters": Place(3, 1), "ftlaunch_mindspore": Place(4, 1), "the core": Place(0, 2, 3),
    "ftlaunch_hooks": Place(3, 2, 2),
    "ftlaunch_contract": Place(0, 3, 5),
}  # fmt: skip
_TOPS = {
    "ftlaunch_ray": SOURCES["ftlaunch_ray"], "adapters": SOURCES["ftlaunch_hooks"] / "adapters", "the core": _FTLAUNCH,
    "ftlaunch_hooks": SOURCES["ftlaunch_hooks"], "ftlaunch_contract": SOURCES["ftlaunch_contract"],
    "ftlaunch_mindspore": SOURCES["ftlaunch_mindspore"], **{name: _FTLAUNCH / name for name in AREAS},
}  # fmt: skip
_FILLS = {
    "the core": CORE.fill, "nodes": NODES.fill, "views": VIEWS.fill, "tools": TOOLS.fill, "ftlaunch_hooks": HOOKS.fill,
    "adapters": HOOKS.fill, "ftlaunch_contract": _CONTRACT,
}  # fmt: skip

# The module with which to begin reading a folder, by the folder's path below its source root. A folder that is not
# named here begins with its only module, or has none.
_BEGIN = {
    "ftlaunch_hooks/devices": "device_port.py", "ftlaunch/autopsy": "verdict.py",
    "ftlaunch/checkpoints": "save_scheduler.py", "ftlaunch/cli": "launch.py",
    "ftlaunch/cli/terminal": "logs.py", "ftlaunch/common": "bulkheads.py",
    "ftlaunch/engine": "supervisor.py", "ftlaunch/health": "hang_detection.py", "ftlaunch/history": "journal.py",
    "ftlaunch/memory": "recovery_plan.py", "ftlaunch/notify": "notifier.py", "ftlaunch/policy": "state_machine.py",
    "ftlaunch/ranks": "group.py", "ftlaunch/reporting": "reporter.py",
    "ftlaunch/reporting/events": "base.py", "ftlaunch/spec": "keys.py", "ftlaunch/spec/nodes": "nodes_spec.py",
    "ftlaunch/spec/meeting_stores": "store.py", "ftlaunch/checkpoints/stores": "stored_checkpoints.py",
    "ftlaunch/spec/notify_targets": "target.py", "ftlaunch/spec/parsing": "rule_parser.py",
    "ftlaunch/spec/tables": "ours.py", "ftlaunch/system": "processes.py",
    "ftlaunch/nodes/agent": "agent.py", "ftlaunch/nodes/agent/head": "main.py",
    "ftlaunch/nodes/agent/hosts": "launcher.py",
    "ftlaunch/nodes/agent/node": "node_ranks.py", "ftlaunch/nodes/channel": "connection.py",
    "ftlaunch/nodes/channel/etcd": "claims.py", "ftlaunch/nodes/channel/votes": "records.py",
    "ftlaunch/nodes/cluster": "cluster.py",
    "ftlaunch/nodes/cluster/copies": "peer_copies.py", "ftlaunch/nodes/cluster/membership": "roster.py",
    "ftlaunch/nodes/cluster/mirrors": "cluster_ranks.py", "ftlaunch/nodes/cluster/nodes": "node.py",
    "ftlaunch/nodes/peers": "copier.py", "ftlaunch/nodes/peers/held": "kept_copies.py",
    "ftlaunch/nodes/peers/plan": "fetch_plan.py", "ftlaunch/nodes/peers/wire": "peer_connection.py",
    "ftlaunch/views/commands": "report.py", "ftlaunch/views/dashboard": "server.py",
    "ftlaunch/views/digest": "directory.py",
    "ftlaunch/views/metrics": "exporter.py", "ftlaunch/views/metrics/traces": "tracer.py",
    "ftlaunch/views/report_page": "render.py", "ftlaunch/views/report_page/gathering": "walk.py",
    "ftlaunch/views/top": "view.py", "ftlaunch/views/top/fullscreen": "app.py",
    "ftlaunch/tools/commands": "check.py", "ftlaunch/tools/kubernetes": "kinds.py", "ftlaunch/tools/planner": "plan.py",
    "ftlaunch/tools/preflight": "checks.py", "ftlaunch/tools/rehearsal": "rehearsal.py",
    "ftlaunch_ray": "launcher.py", "ftlaunch_mindspore": "callback.py", "ftlaunch_mindspore/saving": "snapshots.py",
    "ftlaunch_mindspore/cluster": "roles.py", "ftlaunch_hooks/adapters": "accelerate.py",
    "ftlaunch_hooks/adapters/deepspeed": "attaching.py", "ftlaunch_hooks/adapters/easyckpt": "transformers.py",
    "ftlaunch_hooks/adapters/easyckpt/megatron": "calls.py", "ftlaunch_hooks/adapters/lightning": "callback.py",
    "ftlaunch_hooks/adapters/torchtitan": "manager.py", "ftlaunch_hooks/adapters/transformers": "wrapping.py",
    "ftlaunch_hooks/adapters/transformers/data": "going_back.py", "ftlaunch_hooks/job": "job.py",
    "ftlaunch_hooks/standalone": "standalone.py", "ftlaunch_hooks/standalone/nodes": "nodes_leader.py",
    "ftlaunch_hooks/snapshots": "rank_snapshots.py", "ftlaunch_hooks/observe": "optimizer_steps.py",
    "ftlaunch_hooks/observe/proof": "step_proof.py", "ftlaunch_hooks/observe/reachable": "walk.py",
    "ftlaunch_hooks/observe/unsaved": "survey.py", "ftlaunch_hooks/passes": "kept_loader.py",
    "ftlaunch_hooks/state": "state.py", "ftlaunch_hooks/state/random_numbers": "rng.py",
    "ftlaunch_hooks/storage": "saved_tensors.py", "ftlaunch_hooks/storage/foreign": "reading.py",
    "ftlaunch_hooks/data": "batch_sampler.py", "ftlaunch_hooks/tensors": "replicated.py",
    "ftlaunch_hooks/tensors/ddp": "bucket_layout.py", "ftlaunch_hooks/process": "bootstrap.py",
    "ftlaunch_hooks/programs": "fork_server.py", "ftlaunch_contract": "protocol.py",
    "ftlaunch_contract/checkpoint": "writer.py", "ftlaunch_contract/files": "atomic.py",
    "ftlaunch_contract/pages": "page.py", "ftlaunch_contract/schedulers": "scheduler.py",
}  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------------------------


def core_table() -> str:
    """Return the folders of the core, as Markdown."""
    return _table(path for path in folders("ftlaunch")[1:] if path.relative_to(_FTLAUNCH).parts[0] not in AREAS)


def area_table(area: str) -> str:
    """Return the folders of an area of the supervisor that is built on the core, as Markdown."""
    return _table(path for path in folders("ftlaunch")[1:] if path.relative_to(_FTLAUNCH).parts[0] == area)


def hooks_table() -> str:
    """Return the folders of the hooks and of the contract, as Markdown."""
    return _table(
        [
            *(path for path in folders("ftlaunch_hooks")[1:] if "adapters" not in path.parts),
            *folders("ftlaunch_contract"),
        ]
    )


def beside_table() -> str:
    """Return the folders that nothing imports, as Markdown: those for single frameworks and for Ray."""
    adapters = [path for path in folders("ftlaunch_hooks") if "adapters" in path.parts]
    return _table([*adapters, *folders("ftlaunch_mindspore"), *folders("ftlaunch_ray")])


def _table(paths: Iterable[Path]) -> str:
    lines = ["| folder | what is in there | where to begin reading |", "| --- | --- | --- |"]
    for path in paths:
        name = _name_of(path)
        shown = name.removeprefix("ftlaunch/").removeprefix("ftlaunch_hooks/")
        lines.append(f"| [{shown}/](../{path.relative_to(ROOT).as_posix()}) | {sentence(path)} | {_beginning(path)} |")
    return "\n".join(lines)


def _name_of(folder: Path) -> str:
    """Return the path of a folder below its source root: `ftlaunch/engine`."""
    return folder.relative_to(ROOT).as_posix().partition("/")[2]


def _beginning(folder: Path) -> str:
    """Return the module with which to begin reading a folder, as Markdown. Raises ValueError."""
    name = _BEGIN.get(_name_of(folder))
    modules = sorted(path.name for path in folder.glob("*.py") if not path.name.startswith("__"))
    if name is None and len(modules) > 1:
        raise ValueError(f"cannot say where to begin reading {_name_of(folder)}/: name a module in _BEGIN of areas.py")
    if name is not None and name not in modules:
        raise ValueError(f"cannot begin reading {_name_of(folder)}/ with {name}: no such module; correct areas.py")
    begin = name or next(iter(modules), "")
    return f"[{begin}](../{folder.relative_to(ROOT).as_posix()}/{begin})" if begin else ""


# --- pictures -------------------------------------------------------------------------------------------------------


def drawing(picture: Picture) -> str:
    """Return the drawing of an area. Raises ValueError where a folder has no place, or a place no folder."""
    _check_places(picture)
    texts = {name: (_first_sentence(picture.top / name), _fill(picture, name)) for name in picture.places}
    texts |= {name: (text, _OUTSIDE) for name, (_, text) in picture.outside.items()}
    places = {**picture.places, **{name: place for name, (place, _) in picture.outside.items()}}
    note = "A folder imports from folders below its floor only. The arrows show what flows between folders."
    return _drawn(picture.title, _Grid(places, texts, picture.column), picture.flows, _FLOW, note)


def imports_drawing() -> str:
    """Return the drawing of all areas, with an arrow for each import that does not follow from others."""
    imports = {name: _imports(name) for name in _TOPS}
    flows = []
    for importer, imported in imports.items():
        reached = {far for near in imported for far in _reach(near, imports)}
        for name in sorted(imported - reached):
            flows.append(Flow(importer, name, "", _between(_IMPORTERS[importer], _IMPORTERS[name])))
    texts = {name: (_first_sentence(_TOPS[name]), _FILLS.get(name, _OUTSIDE)) for name in _IMPORTERS}
    texts["the core"] = (_THE_CORE, CORE.fill)
    note = "An area imports only from areas that it reaches along the arrows; the arrows are the imports in the code."
    return _drawn("The areas of ftlaunch, and what imports what", _Grid(_IMPORTERS, texts, 200), flows, _IMPORT, note)


def _first_sentence(folder: Path) -> str:
    """Return the first sentence of a folder's docstring without its full stop and without marks of code."""
    return sentence(folder).split(". ")[0].rstrip(".").replace("`", "")


def _fill(picture: Picture, name: str) -> str:
    return _CONTRACT if name.startswith("ftlaunch_contract/") else picture.fill


def _check_places(picture: Picture) -> None:
    depth = max(name.count("/") for name in picture.places)
    there = {path.parent.relative_to(picture.top).as_posix() for path in picture.top.rglob("__init__.py")} - {"."}
    if picture is CORE:
        there = {name for name in there if name.split("/")[0] not in AREAS and "/" not in name}
    elif picture is HOOKS:
        there = {name for name in there if name.count("/") == 1 and not name.startswith("ftlaunch_mindspore")}
    else:
        there = {name for name in there if name.count("/") <= depth}
    wrong = there.symmetric_difference({*picture.places, *picture.unseen})
    if wrong:
        raise ValueError(f"cannot draw {picture.title!r}: no place or no folder: {', '.join(sorted(wrong))}")


def _imports(name: str) -> set[str]:
    """Return the names of the areas from which an area imports, imports for types and in functions included."""
    found = set()
    for path in _TOPS[name].rglob("*.py"):
        if _area_of(_name_of(path).split("/")) == name:
            for node in ast.walk(ast.parse(path.read_bytes())):
                named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                found |= {_area_of(module.split(".")) for module in named}
    return found - {name, ""}


def _area_of(parts: Sequence[str]) -> str:
    """Return the area to which a module belongs; empty for one that is not ours."""
    package, folder = parts[0], parts[1] if len(parts) > 1 else ""
    if package == "ftlaunch":
        return folder if folder in AREAS else "the core"
    if package == "ftlaunch_hooks" and folder == "adapters":
        return "adapters"
    return package if package in _TOPS else ""


def _reach(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the areas that an area imports, directly or by way of another."""
    return imports[name] | {far for near in imports[name] for far in _reach(near, imports)}


def _between(upper: Place, lower: Place) -> float:
    """Return the column in the middle of what two boxes have above each other."""
    left = max(upper.column, lower.column)
    right = min(upper.column + upper.columns, lower.column + lower.columns)
    return (left + right) / 2


class _Grid:
    """Boxes with texts in rows as high as their texts are long."""

    def __init__(self, places: Mapping[str, Place], texts: Mapping[str, tuple[str, str]], column: int) -> None:
        self.places = places
        self._column = column
        self._fills = {name: fill for name, (_, fill) in texts.items()}
        self._lines = {
            name: textwrap.wrap(text, int((self._width(places[name]) - 18) / _LETTER))
            for name, (text, _) in texts.items()
        }
        rows = max(place.row for place in places.values()) + 1
        highs = [
            30 + _LINE * max(len(self._lines[name]) for name, at in places.items() if at.row == row)
            for row in range(rows)
        ]
        self._highs = highs
        self._tops = [52 + sum(highs[:row]) + 54 * row for row in range(rows)]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        columns = max(place.column + place.columns for place in self.places.values())
        return round(self.x(columns)) - _GAP + _MARGIN, self._tops[-1] + self._highs[-1] + 40

    def x(self, column: float) -> float:
        """Where a column begins."""
        return _MARGIN + column * (self._column + _GAP)

    def boxes(self) -> list[str]:
        """Return the shapes of all boxes."""
        shapes = []
        for name, place in self.places.items():
            x, y = self.x(place.column), self._tops[place.row]
            shapes.append(box(x, y, self._width(place), self._highs[place.row], self._fills[name]))
            shown = name.removeprefix("ftlaunch_hooks/").replace("ftlaunch_contract/", "contract: ")
            shapes.append(words(x + 10, y + 19, shown, 14, bold=True))
            for n, line in enumerate(self._lines[name]):
                shapes.append(words(x + 10, y + 35 + _LINE * n, line, 10.5, ink=INK))
        return shapes

    def arrow(self, flow: Flow, colour: str) -> list[str]:
        """Return the shapes of an arrow and of its label."""
        source, target = self.places[flow.source], self.places[flow.target]
        if source.row == target.row:
            return self._across(source, target, flow, colour)
        x = self.x(flow.at) + (_GAP if flow.at % 1 else 0)
        down = target.row > source.row
        begin = self._tops[source.row] + (self._highs[source.row] if down else 0)
        end = self._tops[target.row] + (0 if down else self._highs[target.row])
        lines = textwrap.wrap(flow.label, 13 if source.columns == target.columns == 1 or self._column < 200 else 24)
        middle = (end - 30 if down else end + 26) - (_LINE * (len(lines) - 1)) / 2
        labels = [words(x + 6, middle + _LINE * n + 4, line, 10.5, ink=FAINT) for n, line in enumerate(lines)]
        return [arrow(f"M{x:g} {begin:g} L{x:g} {end:g}", colour), *labels]

    def _across(self, source: Place, target: Place, flow: Flow, colour: str) -> list[str]:
        y = self._tops[source.row] + self._highs[source.row] / 2 + flow.at
        right = target.column > source.column
        begin = self.x(source.column) + (self._width(source) if right else 0)
        end = self.x(target.column) + (0 if right else self._width(target))
        label = words(min(begin, end) + 14, y - 5, flow.label, 10.5, ink=FAINT)
        return [arrow(f"M{begin:g} {y:g} L{end:g} {y:g}", colour), label]

    def _width(self, place: Place) -> float:
        return place.columns * (self._column + _GAP) - _GAP


def _drawn(title: str, grid: _Grid, flows: Sequence[Flow], colour: str, note: str) -> str:
    width, height = grid.size
    shapes = [heads([colour]), words(_MARGIN, 32, title, 17, bold=True), *grid.boxes()]
    shapes += [shape for flow in flows for shape in grid.arrow(flow, colour)]
    return page(width, height, title, [*shapes, words(_MARGIN, height - 14, note, 12, ink=FAINT)])
