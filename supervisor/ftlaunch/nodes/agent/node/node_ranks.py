"""The ranks of a node: starts, stops and kills them on the head's orders, and reports to the head what they do.

`AgentRanks` runs in the agent's event loop. The head keeps mirrors of the ranks' pages; beats carry what has changed in
the pages, and `perform` repeats what the head has done to the mirrors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.memory.directory import LINEAGE, forget_snapshots, page_files, read_lineage
from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.agent.node.exit_reports import ExitReports
from ftlaunch.nodes.agent.node.node_copier import NodeCopier
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.cluster import beat_pace
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.mirrors import cluster_pages
from ftlaunch.nodes.cluster.mirrors.page_words import Changes
from ftlaunch.ranks.cpu_affinity import CpuAffinity
from ftlaunch.ranks.exit_watch import ExitWatch
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.gpu_memory import EARLIER_RUN, GpuMemoryWait, MemoryWaitEnd
from ftlaunch.ranks.local_ranks import LocalRanks, Surroundings
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.reporting.events.gpu_memory import of_memory_wait
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import Placement
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.ports import free_port
from ftlaunch_contract.checkpoint import layout, seeds
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.protocol import Resume


@dataclass(frozen=True)
class AgentSurroundings:
    """What `AgentRanks` works with."""

    spec: JobSpec
    memory_dir: Path
    """the memory directory of this node, with its pages and snapshots"""
    fork_server: Warm
    base_env: Mapping[str, str]
    """the environment of the ranks, without the variables that ftlaunch adds"""
    control: Path
    """the path of the agent's control socket"""
    marker: str
    """a line of the environment by which processes of this node are recognised"""
    loop: EventLoop[Any]
    clock: Callable[[], float]
    """monotonic seconds"""
    helpers: HelperProcesses
    send: Callable[..., None]
    """sends a message of `messages.UP`"""
    copier: NodeCopier | None
    """None if no copies of snapshots are made"""
    bulkheads: Bulkheads
    """makes calls that the node can do without if they fail"""
    files: FileThread
    """the thread that makes all calls on the directory of the logs"""
    own_files: OwnFiles
    """sends the head what it cannot read, where the run dir is not shared"""
    say: Callable[[str], None]
    """shows a sentence on this node's terminal"""


class AgentRanks:
    """The ranks of one node, of one attempt at a time."""

    def __init__(self, node: AgentSurroundings) -> None:
        self._node = node
        self._gpus = Gpus()
        self._affinity = CpuAffinity(node.spec.launch.numa_binding, node.say)
        self._gpu_memory = GpuMemoryWait(self._gpus, node.loop, node.clock, self._end_memory_wait)
        self.pages: Pages | None = None
        self._group: LocalRanks | None = None
        self._place: Placement | None = None
        self._changes: dict[int, Changes] = {}
        self._deaths: ExitWatch | None = None
        self._is_cleared = True  # no process of the last attempt is left, and the head was told so
        self._unstarted: int | None = None  # an attempt that could not be started, until the head is told `gone`
        self._killed = False  # whether this agent has killed the ranks of the last attempt
        self._exits = ExitReports(node.loop, node.clock, self._send_exits)
        self._beats = 0
        nodes = node.spec.nodes
        self._beat_seconds = beat_pace.beat_seconds(nodes.most, nodes.timeout)
        self._next_beat = 0.0
        # Beats are sent faster once the ranks were told to stop, because the head saves their step as soon as all
        # ranks hold it. Ranks that were told to leave need no faster beats: their ends are reported at once.
        self._is_stopping = False
        self._known_lineage = self.read_lineage()
        self._next: Mapping[str, Any] | None = None  # an attempt that waits for the end of the last one's processes

    # --- what its memory has ----------------------------------------------------------------------------------

    def describe_memory(self) -> dict[str, Any]:
        """Return the fields of `hello` that describe this node's memory and the ranks that run on.

        Raises:
            OSError: the pages cannot be read now.
        """
        held, slots = self.read_held()
        copier = {"port": 0, "lineage": "", "every": 0} if self._node.copier is None else self._node.copier.describe()
        return {
            "held": held,
            "slots": slots,
            "lineage": self.read_lineage(),
            "running": self.describe_running(),
            "copier": copier,
        }

    def read_held(self) -> tuple[list[int], dict[int, list[int]]]:
        """Return which ranks' memory lies here.

        Returns:
            The first rank and the number of ranks, or an empty list; and the steps in the slots of each rank.

        Raises:
            OSError: the pages cannot be read now. Memory with steps must never be taken for empty memory.
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

    def describe_running(self) -> dict[str, Any]:
        """Describe the ranks that run on, for a head that may adopt them.

        Returns:
            Nothing if no rank lives; else the fields:
            place: the place of this node in the attempt.
            pids: the process of each rank, living or not.
            ended: the exit code of each rank that has ended.
            resume: the state with which the attempt has begun.
            stop_at: the step at which the ranks were told to stop, or NONE.
            killed: whether the ranks were killed here and have not all ended, so that no head may adopt them.
        """
        if (
            self._group is None
            or self._place is None
            or self.pages is None
            or self._is_cleared
            or not self._group.living
        ):
            return {}
        ranks = self._group.ranks
        page = self.pages[self._place.first]
        pids = {number: rank.process.pid for number, rank in ranks.items()}
        ended = {number: rank.process.returncode for number, rank in ranks.items() if not rank.alive}
        return {
            "place": self._place.node,
            "pids": pids,
            "ended": ended,
            "resume": list(page.resume),
            "stop_at": page.stop_at,
            "killed": self._killed,
        }

    @property
    def place(self) -> int:
        """The place of this node in the last attempt with ranks on this node, or -1."""
        return -1 if self._place is None else self._place.node

    def read_lineage(self) -> str:
        """Return the lineage of the steps in memory; empty if unknown."""
        return read_lineage(self._node.memory_dir)

    def find_free_port(self) -> int:
        """Return a port at which the ranks of the next attempt can meet.

        Raises:
            OSError: no port is free.
        """
        return self._node.spec.launch.master_port or free_port("")

    # --- what the head says -----------------------------------------------------------------------------------

    def spawn(self, message: Mapping[str, Any]) -> None:
        """Start the ranks of an attempt as soon as no process of an earlier attempt is left.

        Args:
            message: the head's message `spawn`.
        """
        if not self._is_cleared:
            self._next = message
            return
        attempt = int(message["attempt"])
        place = Placement(**message["place"])
        self._is_stopping = False
        self._next_beat = 0.0
        self._unstarted = None
        kind, step, persist_at, every, reading = message["resume"]
        try:
            pages = self._open_pages(place)
            pages.reading(reading)  # resets the mark of a lost head, which would protect a slot for ever
            pages.prepare(Resume(kind), step, persist_at)
            (self._node.memory_dir / LINEAGE).write_text(message["lineage"])
            self._known_lineage = message["lineage"]
            if every:
                pages.announce_interval(every, max(step, 0))
            if self._node.copier is not None:
                self._node.copier.begin(message, pages)
            self._group = group = LocalRanks(self._surroundings(pages, message["seed"]), attempt, self._on_exit, place)
            self._is_cleared = self._killed = False
            group.spawn()
        except OSError as error:
            why = f"{error.filename or 'a system call'}: {error.strerror}"
            self._node.send("cannot_start", attempt=attempt, rank=place.first, why=why)
            if self._is_cleared:
                self._unstarted = attempt
            return
        except SpawnFailed as failed:
            self._node.send("cannot_start", attempt=attempt, rank=failed.rank, why=failed.reason)
        pids = {number: rank.process.pid for number, rank in group.ranks.items()}
        log_from = {number: rank.log_from for number, rank in group.ranks.items()}
        self._node.send("started", attempt=attempt, pids=pids, log_from=log_from)

    def _surroundings(self, pages: Pages, seed: str) -> Surroundings:
        node = self._node
        base_env = {**node.base_env, seeds.ENV_SEED: seed}
        return Surroundings(
            spec=node.spec,
            pages=pages,
            gpus=self._gpus,
            gpu_memory=self._gpu_memory,
            affinity=self._affinity,
            fork_server=node.fork_server,
            base_env=base_env,
            control=node.control,
            marker=node.marker,
            loop=node.loop,
            clock=node.clock,
            files=node.files,
        )

    def _open_pages(self, place: Placement) -> Pages:
        """Open the pages of the ranks at `place`, and delete memory of another place or of another number of ranks.

        Raises:
            OSError: the pages cannot be made.
        """
        same = self._place is not None and self._place.ranks == place.ranks and self._place.world == place.world
        if self.pages is not None and same:
            if self._deaths is not None:
                self._deaths.forget()
            return self.pages
        if self.pages is not None:
            self.pages.close()
            self.pages = None
            self._changes = {}
        if self.read_held()[0] != [place.first, place.count] or nodes_of(self._known_lineage) != place.nodes:
            forget_snapshots(self._node.memory_dir)
        self.pages = Pages(self._node.memory_dir, place.count, place.first)
        self._place = place
        self._changes = {rank: Changes(self.pages[rank]) for rank in place.ranks}
        if self._deaths is not None:
            self._node.loop.unregister(self._deaths.fd)
        # Without the watch, a death is noticed only when the process has ended.
        self._deaths = self._node.bulkheads.call("hear at once of ranks that die", lambda: self._listen(place), None)
        return self.pages

    def _listen(self, place: Placement) -> ExitWatch:
        """Watch for ranks that begin to die.

        Raises:
            OSError: the watch cannot be set up.
        """
        deaths = ExitWatch([page_path(self._node.memory_dir, rank) for rank in place.ranks])
        self._node.loop.register(deaths.fd, self._on_deaths)
        return deaths

    def perform(self, verb: str, values: list[Any]) -> None:
        """Repeat on the pages what the head has done to their mirrors.

        Args:
            verb: the method of the pages.
            values: its arguments.
        """
        if self.pages is not None:
            if verb == "stop":
                self._is_stopping = True
                self._next_beat = 0.0
            cluster_pages.perform(self.pages, verb, values)
            if self._node.copier is not None:
                self._node.copier.follow_pages(verb, values)

    def forward_to_copier(self, message: Mapping[str, Any]) -> None:
        """Pass a message about copies of snapshots on to the copier, if there is one."""
        if self._node.copier is not None:
            self._node.copier.obey(message)

    def leave(self) -> None:
        """Send SIGTERM to the ranks."""
        if self._group is not None:
            self._group.ask_to_leave()

    def kill(self) -> None:
        """Send SIGKILL to the ranks."""
        if self._group is not None:
            self._killed = True
            self._group.kill()

    def slot_dirs(self, slots: Mapping[str, int]) -> dict[str, str]:
        """Return the directory of a snapshot slot by rank.

        Args:
            slots: the number of the slot by rank.
        """
        return {rank: str(layout.slot_dir(self._node.memory_dir, int(rank), slot)) for rank, slot in slots.items()}

    # --- what happens -----------------------------------------------------------------------------------------

    @property
    def cleared(self) -> bool:
        """Whether no process of the last attempt is left, and the head was told so."""
        return self._is_cleared

    @property
    def clearing(self) -> bool:
        """Whether all ranks have ended, but processes that they have left behind are still being ended."""
        return not self._is_cleared and self._group is not None and self._group.empty

    def poll(self) -> int | None:
        """Reap processes, send a beat if one is due, and report the end of the attempt's last process.

        Returns:
            The number of the beat that was sent, or None.
        """
        group = self._group
        if self._node.copier is not None:
            self._node.copier.poll(self._node.clock())
        if group is not None and not self._is_cleared:
            now = self._node.clock()
            spared = self._node.helpers.pids
            call = self._node.bulkheads.call
            call("look at what the ranks' processes do", lambda: group.notice(now), None)
            call("take the exit status of orphans", lambda: group.reap(spared), 0)
        beat = self.send_beat() if self._node.clock() >= self._next_beat else None
        ended = self._unstarted
        if group is not None and not self._is_cleared and group.empty and self._is_swept(group):
            ended = group.attempt
        if ended is not None:
            attempt = ended
            beat = self._node.bulkheads.call(
                "tell the head that the ranks have gone", lambda: self._report_gone(attempt), beat
            )
            if self._is_cleared and self._next is not None:
                waited = self._next
                self._next = None
                self.spawn(waited)
        return beat

    def _report_gone(self, attempt: int) -> int | None:
        """Tell the head that no process of an attempt is left.

        Returns:
            The number of the beat that is sent before.

        Raises:
            OSError: a system call failed before anything was sent.
        """
        port = self.find_free_port()
        slots = self.read_held()[1]
        evidence = {} if self.pages is None else {str(rank): step for rank, step in self.pages.evidence().items()}
        self._is_cleared = True
        self._unstarted = None
        self._exits.send_all()
        beat = self.send_beat()  # carries the last words of the ranks, of which none writes any more
        self._node.send(
            "gone",
            attempt=attempt,
            port=port,
            slots=slots,
            evidence=evidence,
            awaits_memory=int(not self._gpu_memory.is_over),
        )
        return beat

    def await_memory_of(self, ranks: Mapping[int, int], pids: Collection[int]) -> None:
        """Begin to wait for the GPU memory of an earlier agent's processes, on this node.

        Args:
            ranks: the ranks that some of them were, by pid.
            pids: the processes.
        """
        self._gpu_memory.begin(EARLIER_RUN, ranks, pids)

    @property
    def is_memory_free(self) -> bool:
        """Whether ranks may start as far as the GPU memory of those before is concerned."""
        return self._gpu_memory.is_over

    def _end_memory_wait(self, end: MemoryWaitEnd) -> None:
        """Tell the head that the wait for the GPU memory of an attempt is over.

        The wait for an earlier agent's ranks is none of the head's: this node is not ready until it is over.
        """
        if end.attempt != EARLIER_RUN:
            self._node.send("gpu_memory", **end.to_fields())
        elif event := of_memory_wait(end):
            self._node.say(event.sentence())

    def _is_swept(self, group: LocalRanks) -> bool:
        spared = self._node.helpers.pids
        return self._node.bulkheads.call("find what the ranks have left", lambda: group.sweep(spared), False)

    def send_beat_while_forking(self) -> None:
        """Send a beat while ranks are being forked, so that the head knows that this node lives."""
        self.send_beat()

    def send_beat(self) -> int:
        """Send a beat: this node's sign of life, with what has changed in the pages. Return the beat's number."""
        self._beats += 1
        hurries = self._is_stopping and not self._is_cleared
        pause = beat_pace.hurried_seconds(self._beat_seconds) if hurries else self._beat_seconds
        self._next_beat = self._node.clock() + pause
        changes = {rank: page_changes.collect() for rank, page_changes in self._changes.items()}
        words = [[rank, changed] for rank, changed in changes.items() if changed]
        group = self._group
        noted = []
        stopped = []
        if group is not None and not self._is_cleared:
            views = group.views()
            noted = [
                [view.rank, view.active, view.logged, view.busy]
                for view in views
                if not view.attached and not view.observed
            ]
            stopped = sorted(group.stopped())
        self._node.send(
            "beat",
            number=self._beats,
            lineage=self._known_lineage,
            now=self._node.clock(),
            words=words,
            noted=noted,
            stopped=stopped,
        )
        return self._beats

    def resend_all_words(self) -> None:
        """Send all words of the pages with the next beat, because a new head knows none of them."""
        self._next_beat = 0.0
        if self.pages is not None and self._place is not None:
            self._changes = {rank: Changes(self.pages[rank]) for rank in self._place.ranks}

    def _on_exit(self, rank: Rank) -> None:
        assert self._group is not None
        code = rank.process.returncode
        assert code is not None
        self._exits.add(self._group.attempt, rank.number, code, is_last=self._group.empty)

    def _send_exits(self, attempt: int, codes: Mapping[int, int]) -> None:
        self.send_beat()  # first, because a rank's last words say whether it has ended well
        if self._group is not None and self._group.attempt == attempt:
            ranks = {number: self._group.ranks[number] for number in codes}
            by_itself = [number for number, rank in ranks.items() if rank.failed and not (self._killed or rank.asked)]
            begins = {number: rank.log_from for number, rank in ranks.items()}
            self._node.own_files.send_leavings(attempt, begins, by_itself)
        self._node.send("exits", attempt=attempt, codes=codes)

    def _on_deaths(self) -> None:
        assert self._deaths is not None
        assert self._place is not None
        dying = [self._place.first + index for index in self._deaths.read_dying()]
        if self._group is None:
            return
        found = self._group.note_dying(dying, self._node.loop.turn, self._node.clock())
        if found:
            self._node.send("dying", attempt=self._group.attempt, ranks=found)
