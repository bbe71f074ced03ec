"""Starts the agent of each host by ssh, passes on signals, and returns the exit code of the job.

`run` is called in the main thread of `ftlaunch --hosts`. The launcher is no node of the job: all it does for the job is
to keep the sessions. `ftlaunch.nodes.agent.hosts.remote` is the other end of each session.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftlaunch.common.formatting import printable
from ftlaunch.common.signal_names import signal_name
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.agent.hosts import attempts
from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.nodes.agent.hosts.session import HostSession
from ftlaunch.reporting import messages
from ftlaunch.spec import checkpoint_stores, shown
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.spec.parsing.hosts import Host
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.job_token import FROM_STDIN, secrets_of
from ftlaunch.system.own_modules import module
from ftlaunch.system.signals import Signals
from ftlaunch_contract.protocol import EXIT_USAGE

_FAREWELL_SECONDS = 2.0  # that the last lines may take on their way to the terminal
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# Prefixes of the environment variables that are passed on to the agents of every job: settings of ftlaunch, torch and
# its communication.
_PASSED = ("FTLAUNCH_", "PET_", "TORCH", "NCCL_", "GLOO_", "OMP_")

OWN_OPTIONS = ("hosts", "hostfile", "ssh", "nnodes", "rdzv_endpoint")
"""options of this command that are not passed on to the agents as written"""


def run(spec: JobSpec, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a job on the spec's hosts to its end.

    Args:
        spec: the job, with its hosts.
        words: the part of the agents' command line that is the same on each host.
        environ: this command's environment.

    Returns:
        The exit code of the job.
    """
    outlets = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())
    with Signals(spec.launch.stop_signals) as signals:
        launcher = Launcher(spec=spec, words=words, environ=environ, signals=signals, outlets=outlets)
        code = launcher.run()
    for outlet in outlets:
        outlet.close(_FAREWELL_SECONDS)
    return code


def build_agent_words(spec: JobSpec, number: int, words: Sequence[str]) -> list[str]:
    """Return the command line of the agent of one host.

    Args:
        spec: the job.
        number: the index of the host in the spec.
        words: the part of the command line that is the same on each host.
    """
    nodes = spec.nodes
    options = [f"--nnodes={shown.node_range(nodes.least, nodes.most)}"]
    if number < nodes.most:  # further hosts stand by without a rank
        options.append(f"--node-rank={number}")
    if nodes.store is not None:
        options.append(f"--rdzv-endpoint={nodes.store}")
    elif nodes.address is not None:
        options.append(f"--rdzv-endpoint={Endpoint(nodes.address, nodes.port)}")
    slots = nodes.hosts[number].slots
    if slots is not None:
        options.append(f"--nproc-per-node={slots}")
    return [*options, *words]


def build_agent_order(cwd: Path, argv: Sequence[str], environ: Mapping[str, str], spec: JobSpec) -> dict[str, object]:
    """Return the order that `remote.py` is sent to start an agent.

    The token and the password of etcd are not in the environment of the order, but in a list of their own. The
    credentials of a store are in the environment, because the libraries that talk to the store look for them there.

    Args:
        cwd: the directory of the agent.
        argv: the command line of the agent.
        environ: the environment of this command.
        spec: the job, whose stores say which credentials are passed on.
    """
    secrets = secrets_of(environ)
    saving = spec.saving
    passed = (*_PASSED, *checkpoint_stores.credential_prefixes(saving.checkpoint_store, saving.load_address))
    env = {name: value for name, value in environ.items() if name.startswith(passed)}
    env |= dict.fromkeys(secrets, FROM_STDIN)
    return {"cwd": str(cwd), "argv": list(argv), "env": env, "secrets": list(secrets.values())}


class _HostState:
    """One of the hosts, and what has become of its agent."""

    def __init__(self, number: int, host: Host) -> None:
        self.number = number
        self.name = host.name
        self.session: HostSession | None = None
        self.has_run = False  # its agent has been started before
        self.tries = 0  # in a row that did not reach it
        self.reported = ""  # the last reported reason why it cannot be reached; each is reported once


class Launcher:
    """Keeps one session for each host. Driven by its own event loop in `run`."""

    def __init__(
        self,
        spec: JobSpec,
        words: Sequence[str],
        environ: Mapping[str, str],
        signals: Signals,
        outlets: tuple[Outlet, Outlet],
    ) -> None:
        """Prepare the sessions. outlets: this command's stdout and stderr."""
        self._spec = spec
        self._words = words
        self._environ = environ
        self._signals = signals
        self._outlets = outlets
        self._cwd = Path.cwd()
        self._loop = EventLoop[object](time.monotonic)
        self._helpers = HelperProcesses()
        self._hosts = [_HostState(number, host) for number, host in enumerate(spec.nodes.hosts)]
        self._ended: list[int] = []  # exit codes of agents that ended by themselves, in the order of their ends
        self._reached = self._stopping = False

    def run(self) -> int:
        """Run the job to its end. Return the exit code."""
        self._loop.register(self._signals.fd, self._on_signals)
        for state in self._hosts:
            self._start(state)
        self._loop.run(self)
        self._loop.close()
        code = attempts.choose_job_code(self._ended, self._reached, self._stopping)
        if not self._ended:
            if self._reached:
                self._say("no agent is left, and none has said how the job has ended")
            else:
                self._say("cannot start: no host can be reached")
        return code

    # --- for the event loop -----------------------------------------------------------------------------------

    def handle(self, event: object) -> None:
        """Ignore `event`: nothing posts one to this loop."""

    def poll(self) -> None:
        """Do nothing: every change is an event of a descriptor or a timer."""

    def next_poll_at(self) -> float:
        """Return a moment an hour from now, because nothing is polled."""
        return time.monotonic() + 3600.0

    def fail(self, error: Exception) -> None:
        """Raise an unexpected error of the loop; the agents on the hosts end with their connections."""
        raise error

    @property
    def over(self) -> bool:
        """Whether no session is left, so that there is no job that a host could join again."""
        return all(state.session is None for state in self._hosts)

    # --- hosts ------------------------------------------------------------------------------------------------

    def _start(self, state: _HostState) -> None:
        if self._stopping:
            return
        remote = shlex.join(module("ftlaunch.nodes.agent.hosts.remote"))
        argv = [*self._spec.nodes.ssh, *_SSH_OPTIONS, state.name, f"exec {remote}"]
        try:
            state.session = HostSession(
                loop=self._loop,
                helpers=self._helpers,
                argv=argv,
                host=state.name,
                outlets=self._outlets,
                on_reached=lambda: self._on_reached(state),
                on_end=lambda code: self._on_end(state, code),
            )
        except OSError as error:
            self._say(f"cannot run `{argv[0]}`: {str(error.strerror).lower()}; `--ssh` names another program")
            self._ended.append(EXIT_USAGE)

    def _on_reached(self, state: _HostState) -> None:
        assert state.session is not None
        others = [
            other for other in self._hosts if other is not state and other.session is not None and other.session.reached
        ]
        if self._stopping or (state.has_run and not others):  # no job is left that this host could join
            state.session.give_up()
            return
        if state.tries:
            self._say(f"{state.name} is reached again: starting its agent")
        self._reached = True
        state.has_run = True
        state.tries = 0
        state.reported = ""
        words = build_agent_words(self._spec, state.number, self._words)
        order = build_agent_order(cwd=self._cwd, argv=words, environ=self._environ, spec=self._spec)
        state.session.send(json.dumps(order).encode() + b"\n")

    def _on_end(self, state: _HostState, code: int) -> None:
        session = state.session
        state.session = None
        assert session is not None
        why = next((word for word in reversed(session.words) if word), f"exit code {code}")
        if not attempts.was_lost(code):
            self._ended.append(code)
            if not session.reached:
                self._say(f"cannot start an agent on {state.name}: {why}")
            return
        state.tries += 1
        if session.reached:
            if code == attempts.SSH_FAILED:
                self._say(f"the connection to {state.name} is lost")
            else:
                self._say(f"the agent of {state.name} was killed ({signal_name(code - 128)})")
        elif why != state.reported:
            state.reported = why
            self._say(f"cannot reach {state.name}: {why}")
        if not self._stopping:
            when = time.monotonic() + attempts.compute_wait_seconds(state.tries)
            self._loop.call_at(when, state.number, lambda: self._start(state))

    def _on_signals(self) -> None:
        for number in self._signals.read():
            self._say(f"{signal_name(number)}: passed on to the agents")
            self._stopping = True
            for state in self._hosts:
                if state.session is not None:
                    state.session.stop(number)

    def _say(self, sentence: str) -> None:
        self._outlets[1].put(f"{messages.PREFIX}{printable(sentence)}\n".encode())
