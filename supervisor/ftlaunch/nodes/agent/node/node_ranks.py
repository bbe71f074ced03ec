"""The ranks of a node: started, asked to leave, killed as the head says; what happens to them is told to the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.memory.directory import LINEAGE, forget_snapshots, page_files, read_lineage
from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.agent.node.exit_reports import ExitReports
from ftlaunch.nodes.agent.node.node_copier import NodeCopier
from ftlaunch.nodes.cluster import beat_pace
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.mirrors import cluster_pages
from ftlaunch.nodes.cluster.mirrors.page_words import Changes
from ftlaunch.ranks.exit_watch import ExitWatch
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.local_ranks import LocalRanks, Surroundings
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch.system import processes
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.protocol import Resume


@dataclass(frozen=True)
class AgentSurroundings:
    """What the ranks of a node are started with."""

    spec: JobSpec
    memory_dir: Path
    fork_server: Warm
    base_env: Mapping[str, str]
    control: Path
    marker: str
    loop: EventLoop[Any]
    clock: Callable[[], float]
    helpers: HelperProcesses
    tell: Callable[..., None]
    """sends a message of `messages.UP`"""
    copier: NodeCopier | None
    """None where no copies are made"""
    bulkheads: Bulkheads
    """makes calls that only look: the node goes on where one fails"""
    files: FileThread
    """touches the directory of the logs"""


class AgentRanks:
    """Of one attempt at a time."""

    def __init__(self, node: AgentSurroundings) -> None:
        self._node, self._gpus = node, Gpus()
        self.pages: Pages | None = None
        self._group: LocalRanks | None = None
        self._place: Placement | None = None
        self._changes: dict[int, Changes] = {}
        self._deaths: ExitWatch | None = None
        self._gone = True
        self._unstarted: int | None = None  # an attempt of which nothing could be started, and the head waits for word
        self._killed = False  # the ranks of the last attempt, by this agent
        self._exits = ExitReports(node.loop, node.clock, self._send_exits)
        self._beats = 0
        nodes = node.spec.nodes
        self._beat_seconds = beat_pace.beat_seconds(nodes.most, nodes.timeout)
        self._next_beat = 0.0
        # The ranks were told to stop: the head saves their step as soon as all hold it. What they do where they were
        # told to leave, their ends say.
        self._is_stopping = False
        self._known_lineage = self.lineage()
        self._next: Mapping[str, Any] | None = None  # an attempt to be started once the last one's processes are gone

    # --- what its memory has ----------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """What a head must know of it, fields of `hello`. Raises OSError."""
        held, slots = self.held()
        copier = {"port": 0, "lineage": "", "every": 0} if self._node.copier is None else self._node.copier.said()
        told = {"lineage": self.lineage(), "running": self.running(), "copier": copier}
        return {"held": held, "slots": slots, **told}

    def held(self) -> tuple[list[int], dict[int, list[int]]]:
        """First rank and number of ranks whose memory lies here, or nothing; and by rank the steps in its slots.

        Raises OSError where that cannot be seen now: memory that holds steps is not taken for one that holds none.
        """
        slots = {}
        for path in page_files(self._node.memory_dir):
            try:
                page = Page(path)
            except ValueError:
                return [], {}
            slots[int(path.name.removeprefix("page_"))] = list(page.slot_steps())
            page.close()
        if not slots or sorted(slots) != list(range(min(slots), min(slots) + len(slots))):
            return [], {}
        return [min(slots), len(slots)], slots

    def running(self) -> dict[str, Any]:
        """The place, processes and ends of ranks that run on, and where they resume; empty where none does.

        `killed`: they were killed here, and have not all ended: no head may take them up. `stop_at`: they were told to
        stop at that step, or NONE.
        """
        if self._group is None or self._place is None or self.pages is None or self._gone or not self._group.living:
            return {}
        ranks, page = self._group.ranks, self.pages[self._place.first]
        pids = {number: rank.process.pid for number, rank in ranks.items()}
        ended = {number: rank.process.returncode for number, rank in ranks.items() if not rank.alive}
        told = {"resume": list(page.resume), "stop_at": page.stop_at, "killed": self._killed}
        return {"place": self._place.node, "pids": pids, "ended": ended, **told}

    @property
    def place(self) -> int:
        """Of this node in the last attempt that it took part in, or -1."""
        return -1 if self._place is None else self._place.node

    def lineage(self) -> str:
        """Of which attempt the steps in memory are; empty where that is not known."""
        return read_lineage(self._node.memory_dir)

    def free_port(self) -> int:
        """A port at which the ranks of the next attempt may meet. Raises OSError."""
        return self._node.spec.launch.master_port or processes.free_port("")

    # --- what the head says -----------------------------------------------------------------------------------

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Start the ranks of an attempt, once no process of an earlier one is left."""
        if not self._gone:
            self._next = message
            return
        attempt, place = int(message["attempt"]), Placement(**message["place"])
        self._is_stopping, self._next_beat = False, 0.0
        self._unstarted = None
        kind, step, persist_at, every, reading = message["resume"]
        try:
            pages = self._take_pages(place)
            pages.reading(reading)  # a head that is gone may have left another one: its slot would be kept for ever
            pages.prepare(Resume(kind), step, persist_at)
            (self._node.memory_dir / LINEAGE).write_text(message["lineage"])
            self._known_lineage = message["lineage"]
            if every:
                pages.announce_interval(every, max(step, 0))
            if self._node.copier is not None:
                self._node.copier.begin(message, pages)
            self._group = group = LocalRanks(self._around(pages, message["seed"]), attempt, self._on_exit, place)
            self._gone = self._killed = False
            group.spawn()
        except OSError as error:
            why = f"{error.filename or 'a system call'}: {error.strerror}"
            self._node.tell("cannot_start", attempt=attempt, rank=place.first, why=why)
            if self._gone:
                self._unstarted = attempt
            return
        except SpawnFailed as failed:
            self._node.tell("cannot_start", attempt=attempt, rank=failed.rank, why=failed.reason)
        pids = {rank: one.process.pid for rank, one in group.ranks.items()}
        log_from = {rank: one.log_from for rank, one in group.ranks.items()}
        self._node.tell("started", attempt=attempt, pids=pids, log_from=log_from)

    def _around(self, pages: Pages, seed: str) -> Surroundings:
        node = self._node
        base_env = {**node.base_env, seeds.ENV_SEED: seed}
        return Surroundings(
            spec=node.spec,
            pages=pages,
            gpus=self._gpus,
            fork_server=node.fork_server,
            base_env=base_env,
            control=node.control,
            marker=node.marker,
            exits=node.loop,
            clock=node.clock,
            files=node.files,
        )

    def _take_pages(self, place: Placement) -> Pages:
        """The pages of its ranks. Those of other ranks, from another place in the job, are deleted. Raises OSError."""
        same = self._place is not None and self._place.ranks == place.ranks and self._place.world == place.world
        if self.pages is not None and same:
            if self._deaths is not None:
                self._deaths.forget()
            return self.pages
        if self.pages is not None:
            self.pages.close()
            self.pages, self._changes = None, {}
        if self.held()[0] != [place.first, place.count] or nodes_of(self._known_lineage) != place.nodes:
            forget_snapshots(self._node.memory_dir)  # of another place, or of another number of ranks
        self.pages, self._place = Pages(self._node.memory_dir, place.count, place.first), place
        self._changes = {rank: Changes(self.pages[rank]) for rank in place.ranks}
        if self._deaths is not None:
            self._node.loop.unregister(self._deaths.fd)
        # without it a death is seen when it is over
        self._deaths = self._node.bulkheads.call("hear at once of ranks that die", lambda: self._listen(place), None)
        return self.pages

    def _listen(self, place: Placement) -> ExitWatch:
        """Hear of deaths from now on. Raises OSError."""
        deaths = ExitWatch([page_path(self._node.memory_dir, rank) for rank in place.ranks])
        self._node.loop.register(deaths.fd, self._on_deaths)
        return deaths

    def perform(self, verb: str, values: list[Any]) -> None:
        """Do to the pages what the head has done to their mirrors."""
        if self.pages is not None:
            if verb == "stop":
                self._is_stopping, self._next_beat = True, 0.0
            cluster_pages.perform(self.pages, verb, values)
            if self._node.copier is not None:
                self._node.copier.heed_pages(verb, values)

    def heed_copies(self, message: Mapping[str, Any]) -> None:
        """A message about copies of snapshots."""
        if self._node.copier is not None:
            self._node.copier.take(message)

    def leave(self) -> None:
        """SIGTERM to the ranks."""
        if self._group is not None:
            self._group.ask_to_leave()

    def kill(self) -> None:
        """SIGKILL to the ranks."""
        if self._group is not None:
            self._killed = True
            self._group.kill()

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """Rank -> directory of the slot, of ranks and slots by number."""
        return {rank: str(layout.slot_dir(self._node.memory_dir, int(rank), slot)) for rank, slot in slots.items()}

    # --- what happens -----------------------------------------------------------------------------------------

    @property
    def cleared(self) -> bool:
        """Whether no process of the last attempt is left."""
        return self._gone

    @property
    def clearing(self) -> bool:
        """Whether all ranks have ended, and what they have left is being ended: the next attempt waits for that."""
        return not self._gone and self._group is not None and self._group.empty

    def look(self) -> int | None:
        """Tell what the ranks have written, where that is due, and that all have gone.

        Returns:
            The number of the beat that was sent; None where none was due.
        """
        group = self._group
        if self._node.copier is not None:
            self._node.copier.look(self._node.clock())
        if group is not None and not self._gone:
            now, spared, call = self._node.clock(), self._node.helpers.pids, self._node.bulkheads.call
            call("look at what the ranks' processes do", lambda: group.notice(now), None)
            call("take the exit status of orphans", lambda: group.reap(spared), 0)
        beat = self.tell_words() if self._node.clock() >= self._next_beat else None
        ended = self._unstarted
        if group is not None and not self._gone and group.empty and self._is_swept(group):
            ended = group.attempt
        if ended is not None:
            attempt = ended
            beat = self._node.bulkheads.call(
                "tell the head that the ranks have gone", lambda: self._tell_gone(attempt), beat
            )
            if self._gone and self._next is not None:
                waited, self._next = self._next, None
                self.spawn(waited)
        return beat

    def _tell_gone(self, attempt: int) -> int | None:
        """Tell the head that no process of an attempt is left; return the number of the beat that goes before.

        Raises OSError; nothing was told then.
        """
        port, slots = self.free_port(), self.held()[1]
        evidence = {} if self.pages is None else {str(rank): step for rank, step in self.pages.evidence().items()}
        self._gone, self._unstarted = True, None
        self._exits.send_all()
        beat = self.tell_words()  # what the ranks have written last; no rank writes any more
        self._node.tell("gone", attempt=attempt, port=port, slots=slots, evidence=evidence)
        return beat

    def _is_swept(self, group: LocalRanks) -> bool:
        spared = self._node.helpers.pids
        return self._node.bulkheads.call("find what the ranks have left", lambda: group.sweep(spared), False)

    def tell_beat(self) -> None:
        """Tell the head that this node lives, while ranks are forked."""
        self.tell_words()

    def tell_words(self) -> int:
        """Tell the head what has changed in the pages. It is a sign of life; returns its number."""
        self._beats += 1
        hurries = self._is_stopping and not self._gone
        pause = beat_pace.hurried_seconds(self._beat_seconds) if hurries else self._beat_seconds
        self._next_beat = self._node.clock() + pause
        words = [[rank, changes] for rank, found in self._changes.items() if (changes := found.look())]
        group, noted, stopped = self._group, [], []
        if group is not None and not self._gone:
            views = group.views()
            noted = [[v.rank, v.active, v.logged, v.busy] for v in views if not v.attached and not v.observed]
            stopped = sorted(group.stopped())
        told = {"words": words, "noted": noted, "stopped": stopped}
        self._node.tell("beat", number=self._beats, lineage=self._known_lineage, now=self._node.clock(), **told)
        return self._beats

    def tell_all_words_again(self) -> None:
        """There is another head: it knows nothing yet."""
        self._next_beat = 0.0
        if self.pages is not None and self._place is not None:
            self._changes = {rank: Changes(self.pages[rank]) for rank in self._place.ranks}

    def _on_exit(self, rank: Rank) -> None:
        assert self._group is not None
        code = rank.process.returncode
        assert code is not None
        self._exits.add(self._group.attempt, rank.number, code, is_last=self._group.empty)

    def _send_exits(self, attempt: int, codes: Mapping[int, int]) -> None:
        self.tell_words()  # first: its last words say whether a rank has ended well
        self._node.tell("exits", attempt=attempt, codes=codes)

    def _on_deaths(self) -> None:
        assert self._deaths is not None
        assert self._place is not None
        dying = [self._place.first + index for index in self._deaths.heard()]
        if self._group is None:
            return
        found = self._group.note_dying(dying, self._node.loop.turn, self._node.clock())
        if found:
            self._node.tell("dying", attempt=self._group.attempt, ranks=found)
