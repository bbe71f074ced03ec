"""Runs a node's agent to its end, after starting the job's head if the endpoint is on this machine.

`run` is called in the main thread of `ftlaunch`, once for a job of several nodes. `_Node` builds the agent with
everything that the agent works with, and takes it apart in the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftlaunch.autopsy.client import collect_here
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.common.bulkheads import Bulkheads, FailedCall
from ftlaunch.engine.closing import Closing
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.main import keeps_logs_short
from ftlaunch.engine.preemption_watch import watch_for
from ftlaunch.engine.workspace import Unusable
from ftlaunch.extensions import MACHINE_WARNINGS, load
from ftlaunch.history import job_index
from ftlaunch.memory import memory_owner
from ftlaunch.memory.directory import (
    count_pages,
    forget_snapshots,
    places_of,
    read_lineage,
    read_places,
    remove_memory,
)
from ftlaunch.memory.earlier_ranks import find_earlier_ranks
from ftlaunch.memory.memory_owner import OwnedMemory
from ftlaunch.nodes.agent.agent import Agent
from ftlaunch.nodes.agent.head.election import Order
from ftlaunch.nodes.agent.head.main import be_head
from ftlaunch.nodes.agent.head.starter import HeadStarter
from ftlaunch.nodes.agent.head_in_store import HeadInStore
from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.node.node_copier import NodeCopier
from ftlaunch.nodes.agent.node.node_helpers import NodeHelpers
from ftlaunch.nodes.agent.node.node_load import FETCHER, NodeLoad
from ftlaunch.nodes.agent.node.node_ranks import AgentRanks, AgentSurroundings
from ftlaunch.nodes.agent.node.node_store import KEEPER, NodeStore
from ftlaunch.nodes.agent.node.node_voter import VOTER, NodeVoter
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.agent.questions import Questions
from ftlaunch.nodes.agent.takeover import QUIET_SECONDS
from ftlaunch.nodes.channel.claims import STALE_PART, this_machine
from ftlaunch.nodes.cluster import unshared_nodes
from ftlaunch.nodes.cluster.beat_pace import beat_seconds
from ftlaunch.nodes.cluster.log_pieces import LogPieces
from ftlaunch.nodes.cluster.membership import facts
from ftlaunch.nodes.cluster.membership.fingerprint import job_of
from ftlaunch.nodes.cluster.membership.lineage import is_of_fresh_run
from ftlaunch.nodes.peers.copier_client import CopierLink
from ftlaunch.ranks import environment
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.fork_server_watch import ForkServerWatch
from ftlaunch.reporting import messages
from ftlaunch.reporting.events.failures import CallFailed
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import descriptor_limit, job_token, processes
from ftlaunch.system.control_socket import Control
from ftlaunch.system.device_names import gather_names
from ftlaunch.system.file_thread import PATIENCE_SECONDS, FileThreads
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.signals import Signals
from ftlaunch.system.systemd import READY, STOPPING, ServiceManager
from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import fresh_start
from ftlaunch_contract.files.dirlock import Locked
from ftlaunch_contract.files.private_dir import NotPrivate, make_private

TOKEN = "token"  # noqa: S105 - the name of the file in the run dir
_MOST_AGENTS = 64  # of one job on one machine
_REPLACE_RETRY_SECONDS = 1.0  # between two tries to start the thread that reads signs


def run(spec: JobSpec, begun: Callable[[], None]) -> int:
    """Take part in a job of several nodes until it is over.

    Args:
        spec: the job.
        begun: called once the agent has its memory, and the head that was started here, if any, has taken up the job.

    Returns:
        The exit code.

    Raises:
        Unusable: the job cannot be started with these settings. The message is for the terminal.
    """
    try:
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        token = _token_of(spec)
    except job_token.TokenRefused as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        raise Unusable(f"cannot start: {error.filename or spec.run_dir}: {error.strerror}") from error
    manager = ServiceManager(os.environ)
    facts.gather(spec)  # before a head is forked, so that the head compares what this agent was started with
    try:
        starter = HeadStarter(
            spec, lambda write, order, term: be_head(spec=spec, token=token, write=write, order=Order(order, term))
        )
    except OSError as error:
        raise _cannot_start(error) from error
    starter.start()
    if starter.unusable:
        return protocol.EXIT_USAGE
    processes.become_subreaper()
    descriptor_limit.raise_limit()
    with Signals(spec.launch.stop_signals) as signals:
        try:
            node = _Node(spec=spec, token=token, signals=signals, starter=starter)
        except OSError as error:
            starter.dismiss_head()
            raise _cannot_start(error) from error
        except BaseException:
            starter.dismiss_head()
            raise
        node.agent.beside_head = starter.has_started
        manager.notify(READY)
        manager.show_life(node.loop)
        begun()
        code = node.run()
        manager.notify(STOPPING)
    if not node.agent.dismissed:  # else the head goes on with the other nodes
        starter.wait_for_head()
    return code


def _token_of(spec: JobSpec) -> bytes:
    """Return the secret that this node must share with the others.

    Raises:
        TokenRefused: the file of the token cannot be trusted.
        OSError: it cannot be created or read.
    """
    nodes = spec.nodes
    if not nodes.authenticates:
        say(
            "nodes need no token (auth=none): whoever reaches the port of the head or of a node can take part in this"
            " job, and run it"
        )
        return job_token.NO_TOKEN
    return nodes.token.encode() if nodes.token else job_token.read_or_make(spec.run_dir / TOKEN)


def _cannot_start(error: OSError) -> Unusable:
    """Return the error of an agent that cannot start because a system call has failed."""
    return Unusable(f"cannot start: {error.filename or 'a system call'}: {error.strerror}")


def say(sentence: str) -> None:
    """Write a sentence to this node's terminal."""
    sys.stderr.write(f"{messages.PREFIX}{sentence}\n")
    sys.stderr.flush()


def say_failed(failed: FailedCall) -> None:
    """Report a failed call that the node can do without."""
    if sentence := CallFailed(failed).sentence():
        say(sentence)


def _is_of_unfinished_run(spec: JobSpec, memory_dir: Path) -> bool:
    """Return whether memory belongs to the unfinished run that `--fresh` has begun with this same command."""
    run = fresh_start.unfinished_run(spec.checkpoint_dir, spec.command)
    return bool(run) and is_of_fresh_run(read_lineage(memory_dir), run)


def _acquire_memory(spec: JobSpec) -> OwnedMemory:
    """Acquire the memory directory of this agent's node rank, or the first one that no other agent has.

    Raises:
        Unusable: another agent has this node rank, too many agents run, or the directory cannot be made.
    """
    most = spec.nodes.most
    # A node rank is below `most`. Agents without one take numbers from `most` on, and never a rank's directory.
    rank = spec.nodes.rank
    numbers = range(most, most + _MOST_AGENTS) if rank is None else [rank]
    try:
        places = places_of(spec.run_dir, spec.checkpoint_dir)
        with _one_agent_at_a_time():
            for number in numbers:
                with contextlib.suppress(Locked):
                    return memory_owner.acquire(f"{spec.job_id}.node{number}", places, lambda _: None, say)
    except NotPrivate as error:
        raise Unusable(f"cannot start: {error}") from error
    except OSError as error:
        raise Unusable(f"cannot start: {error.filename}: {error.strerror}") from error
    if spec.nodes.rank is not None:
        raise Unusable(f"cannot start: another agent of this job has --node-rank {spec.nodes.rank} on this machine")
    raise Unusable(f"cannot start: {_MOST_AGENTS} agents of this job run on this machine")


def open_probe_socket() -> socket.socket:
    """Return a socket that listens at all addresses of the machine for as long as this agent lives.

    Refused connections show the head that the agent has ended (`fences.PortProbe`).
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


@contextlib.contextmanager
def _one_agent_at_a_time() -> Iterator[None]:
    """Make agents of this user that start together take their memory one after another."""
    root = protocol.memory_root(os.getuid()) / "@agents"  # no job id has an @
    opened = _locked_directory(root)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            root.rmdir()
        os.close(opened)


def _locked_directory(path: Path) -> int:
    """Lock a directory, and return its descriptor.

    The last holder removes the directory before its lock ends. Therefore a lock counts only if the directory still
    exists at `path`.
    """
    while True:
        make_private(path)
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(opened, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened), path.stat()):
                    return opened
            os.close(opened)


class _Node:
    """The agent with its memory, event loop and helper processes."""

    def __init__(self, spec: JobSpec, token: bytes, signals: Signals, starter: HeadStarter) -> None:
        """Build everything, and begin to search for the head.

        Raises:
            Unusable: no memory directory can be taken.
            OSError: a system call failed. Memory that was made for this node is removed.
        """
        self._spec = spec
        self._memory = _acquire_memory(spec)
        try:
            self._begin(token, signals, starter)
        except OSError:
            self._memory.give_back()
            raise

    def _begin(self, token: bytes, signals: Signals, starter: HeadStarter) -> None:
        """Start the helpers, and begin to search for the head.

        Raises:
            OSError: a system call failed.
        """
        spec = self._spec
        memory = self._memory
        marker = f"{protocol.ENV_MEMORY_DIR}={memory.directory}"
        earlier_ranks = find_earlier_ranks(memory.directory)
        earlier_pids = earlier_ranks.keys() | processes.kill_marked(marker)
        if spec.saving.fresh and not _is_of_unfinished_run(spec, memory.directory):
            forget_snapshots(memory.directory)
        self._helpers = helpers = HelperProcesses()
        self._start_keeper = lambda: SaverLink(helpers, marker, [], program=KEEPER)
        self.loop = loop = EventLoop[Any](time.monotonic)
        base_env = dict(os.environ)
        fork_env = environment.warm_env(spec, base_env, memory.directory)
        log = spec.log_dir / f"warm.{socket.gethostname()}.{os.getpid()}.log"
        self._files = FileThreads([spec.log_dir])
        logs = self._files.of(spec.log_dir)
        self._fork_server = fork_server = Warm(helpers, spec, fork_env, log, logs, lambda *_, **__: None)
        self._control = Control(memory.directory)
        self._copier = self._make_copier(token) if spec.nodes.peer_interval else None
        bulkheads = Bulkheads(say_failed)
        self._own_files = own_files = OwnFiles(spec, logs, self._send, say)
        self._log_pieces = LogPieces(loop, spec.log_dir)
        self._ranks = AgentRanks(
            AgentSurroundings(
                spec=spec,
                memory_dir=memory.directory,
                fork_server=fork_server,
                base_env=base_env,
                control=self._control.path,
                marker=marker,
                loop=loop,
                clock=time.monotonic,
                helpers=helpers,
                send=self._send,
                copier=self._copier,
                bulkheads=bulkheads,
                files=logs,
                own_files=own_files,
                say=say,
            )
        )
        fork_server.while_waiting = self._ranks.send_beat_while_forking
        self._ranks.await_memory_of(earlier_ranks, earlier_pids)
        is_settled = ForkServerWatch(fork_server, loop, say).is_settled
        store = NodeStore(
            spec=spec,
            name=memory.directory.name,
            loop=loop,
            start_keeper=self._start_keeper,
            send=self._send,
        )
        load = NodeLoad(
            spec=spec,
            loop=loop,
            start_fetcher=lambda: SaverLink(helpers, marker, [], program=FETCHER),
            send=self._send,
            say=say,
        )
        voter = NodeVoter(
            loop=loop,
            start=lambda: CopierLink(helpers, program=VOTER),
            begin={
                "do": "begin",
                "run_dir": str(spec.run_dir),
                "token": token.hex(),
                "address": "::" if socket.has_dualstack_ipv6() else "0.0.0.0",  # noqa: S104 - others must know the token
            },
            send=self._send,
            say=say,
        )
        self._node_helpers = NodeHelpers(
            loop=loop,
            start_saver=lambda: SaverLink(helpers, marker, [memory.lock.fd]),
            collect=collect_here(helpers, memory.directory),
            may_begin=lambda now: is_settled(now) and self._ranks.is_memory_free,
            own_files=own_files,
            store=store,
            load=load,
            voter=voter,
            send=self._send,
        )
        self._probe = open_probe_socket()
        self.agent = self._make_agent(token, starter, bulkheads)
        loop.register(signals.fd, lambda: self.agent.on_signals(signals.read()))
        self._preemption = watch_for(spec, loop, helpers, self._drain, say)
        if limited := keeps_logs_short(spec):
            say(limited)
        job_index.note(helpers, loop, spec.job_id, spec.run_dir)
        self._questions = Questions(loop=loop, clock=time.monotonic, control=self._control, agent=self.agent, say=say)

    def _make_agent(self, token: bytes, starter: HeadStarter, bulkheads: Bulkheads) -> Agent:
        spec = self._spec
        hello = {
            "job": job_of(spec),
            "host": socket.gethostname(),
            "rank": -1 if spec.nodes.rank is None else spec.nodes.rank,
            "probe": self._probe.getsockname()[1],
            "facts": facts.gather(spec).as_dict(),
            "warnings": load(MACHINE_WARNINGS)(spec),
            "topology": spec.nodes.topology or facts.gather(spec).machine,
        }
        if spec.metrics is not None and spec.metrics.ranks:
            hello["devices"] = gather_names({**os.environ, **spec.launch.env}).as_dict()
        store = spec.nodes.store
        # The head confirms each beat. Thousands of nodes must not look into the run dir between two beats.
        quiet_seconds = max(QUIET_SECONDS, 1.5 * beat_seconds(spec.nodes.most, spec.nodes.timeout))
        search = HeadSearch(
            send_order=starter.send_order,
            clock=time.monotonic,
            machine=this_machine(),
            stale_seconds=spec.nodes.timeout * STALE_PART,
            quiet_seconds=quiet_seconds,
            in_store=store is not None,
        )
        # Nodes did not share this run dir before: a sign in it may be of a job in which this node was the head's.
        search.may_replace_head = store is not None or not unshared_nodes.is_marked(spec.run_dir)

        def on_answers() -> None:
            for answer in starter.read_answers():
                search.on_answer(answer)
            if starter.gone:
                self.loop.unregister(starter.fd)
                say("the process that starts heads on this node was killed: another node starts one, if that is needed")
                replace_starter()

        def start_thread() -> bool:
            starter.replace_by_thread()
            self.loop.register(starter.fd, on_answers)
            search.forget_orders()
            return True

        def replace_starter() -> None:
            if not bulkheads.call("look for another head", start_thread, otherwise=False):
                self.loop.call_at(time.monotonic() + _REPLACE_RETRY_SECONDS, "replace the starter", replace_starter)

        self.loop.register(starter.fd, on_answers)
        endpoint = f"{store.backend} at {store}" if store is not None else (spec.nodes.address or "", spec.nodes.port)

        def make_link(on_message: Callable[[dict[str, Any]], None], on_ready: Callable[[], None]) -> HeadLink:
            return HeadLink(
                loop=self.loop,
                clock=time.monotonic,
                endpoint=endpoint,
                token=token,
                on_message=on_message,
                on_ready=on_ready,
                on_no_listener=search.start_head,
                silence_seconds=spec.nodes.timeout,
            )

        self._head_in_store = None
        if spec.saving.checkpoint_store is not None and store is None:
            self._head_in_store = HeadInStore(spec, self.loop, self._start_keeper, say)
        return Agent(
            spec=spec,
            clock=time.monotonic,
            make_link=make_link,
            ranks=self._ranks,
            helpers=self._node_helpers,
            search=search,
            own_files=self._own_files,
            serve_logs=self._log_pieces.serve,
            hello=hello,
            say=say,
            head_in_store=self._head_in_store,
        )

    def _make_copier(self, token: bytes) -> NodeCopier:
        begin = {
            "do": "begin",
            "token": token.hex(),
            "address": "::" if socket.has_dualstack_ipv6() else "0.0.0.0",  # noqa: S104 - peers must know the token
            "memory_dir": str(self._memory.directory),
            "bandwidth": self._spec.nodes.peer_bandwidth,
        }
        return NodeCopier(
            loop=self.loop,
            start=lambda: CopierLink(self._helpers),
            begin=begin,
            send=self._send,
            say=say,
        )

    def _send(self, do: str, **fields: Any) -> None:
        self.agent.link.send(do, **fields)

    def _drain(self, why: str) -> None:
        """Drain this node, as on SIGTERM, because this machine will be taken away. Without a head, stop the node."""
        if self.agent.link.alone_since is None:
            self.agent.link.send("drain", why=f"{why} ({socket.gethostname()})")
        else:
            self.agent.ask_stop(why)

    def run(self) -> int:
        """Run the agent to its end, and end its helpers. Return the exit code."""
        self.loop.run(self.agent)
        closing = Closing(say)
        if self._preemption is not None:
            closing("end the look for a preemption notice", self._preemption.close)
        closing("dismiss the fork server", self._fork_server.dismiss)
        closing("answer the last questions", self._questions.close)
        closing("end the connection to the head", self.agent.link.close)
        if self._head_in_store is not None:
            closing("end the look for the head in the store", self._head_in_store.close)
        closing("remove the control socket", self._control.close)
        closing("close the port by which the end of this agent is seen", self._probe.close)
        closing("end the saver", lambda: self._node_helpers.close(self._spec.grace))
        if self._copier is not None:
            closing("end the copier", self._copier.close)
        closing("end the fork server", self._fork_server.close)
        closing("keep the end of the journal", lambda: self._files.of(self._spec.log_dir).flush(PATIENCE_SECONDS))
        closing("end the thread that touches the logs", self._files.close)
        closing("end the thread that reads logs for others", self._log_pieces.close)
        closing(f"remove {self._memory.directory}, in which nothing is needed any more", self._remove_memory)
        closing("release the lock of the memory", self._memory.lock.release)
        closing("close the event loop", self.loop.close)
        assert self.agent.code is not None
        return self.agent.code

    def _remove_memory(self) -> None:
        """Remove this node's memory directory, unless its snapshots are still needed.

        Raises:
            OSError: something cannot be removed.
        """
        directory = self._memory.directory
        places = read_places(directory)  # not from the run dir, because storage may no longer answer
        if not self.agent.keep or not count_pages(directory):
            remove_memory(directory)
        if not self.agent.keep and places is not None:
            memory_owner.remove_unowned(self._spec.job_id, places)
