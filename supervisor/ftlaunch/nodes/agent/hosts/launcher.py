"""Starts the agent of each host by ssh, passes on signals, and ends with the agents' one exit code."""

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
from ftlaunch.spec import shown
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.spec.parsing.hosts import Host
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.job_token import FROM_STDIN, secrets_of
from ftlaunch.system.own_modules import module
from ftlaunch.system.signals import Signals
from ftlaunch_contract.protocol import EXIT_USAGE

_FAREWELL = 2.0  # seconds that the last lines may take on their way to the terminal
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# Variables that the agents get of this command's environment: settings of ftlaunch, torch and its communication.
_PASSED = ("FTLAUNCH_", "PET_", "TORCH", "NCCL_", "GLOO_", "OMP_")

OWN_OPTIONS = ("hosts", "hostfile", "ssh", "nnodes", "rdzv_endpoint")
"""options that agents are not given as they were written"""


def run(spec: JobSpec, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a job on the spec's hosts to its end; returns the exit code.

    words: the command line of the agents, but for what is different on each host.
    """
    outlets = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())
    with Signals(spec.launch.stop_signals) as signals:
        launcher = Launcher(spec, words, environ, signals, outlets)
        code = launcher.run()
    for outlet in outlets:
        outlet.close(_FAREWELL)
    return code


def agent_words(spec: JobSpec, number: int, words: Sequence[str]) -> list[str]:
    """The command line of the agent of one host."""
    nodes = spec.nodes
    options = [f"--nnodes={shown.node_range(nodes.least, nodes.most)}"]
    if number < nodes.most:  # those beyond stand by
        options.append(f"--node-rank={number}")
    if nodes.etcd is not None:
        options.append(f"--rdzv-endpoint={nodes.etcd}")
    elif nodes.address is not None:
        options.append(f"--rdzv-endpoint={Endpoint(nodes.address, nodes.port)}")
    slots = nodes.hosts[number].slots
    return [*options, *([] if slots is None else [f"--nproc-per-node={slots}"]), *words]


def agent_order(cwd: Path, argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, object]:
    """What the other end of a session is told, see `remote.py`. A secret is in no environment that is passed."""
    secrets = secrets_of(environ)
    env = {name: value for name, value in environ.items() if name.startswith(_PASSED)}
    env |= dict.fromkeys(secrets, FROM_STDIN)
    return {"cwd": str(cwd), "argv": list(argv), "env": env, "secrets": list(secrets.values())}


class _HostState:
    """One of the hosts, and what became of its agent."""

    def __init__(self, number: int, host: Host) -> None:
        self.number, self.name = number, host.name
        self.session: HostSession | None = None
        self.again = False  # its agent has run before
        self.tries = 0  # in a row that did not reach it
        self.told = ""  # why it cannot be reached: said once


class Launcher:
    """What the event loop works for: a session for each host."""

    def __init__(
        self,
        spec: JobSpec,
        words: Sequence[str],
        environ: Mapping[str, str],
        signals: Signals,
        outlets: tuple[Outlet, Outlet],
    ) -> None:
        self._spec, self._words, self._environ, self._signals, self._outlets = spec, words, environ, signals, outlets
        self._cwd = Path.cwd()
        self._loop = EventLoop[object](time.monotonic)
        self._helpers = HelperProcesses()
        self._hosts = [_HostState(number, host) for number, host in enumerate(spec.nodes.hosts)]
        self._ended: list[int] = []
        self._reached = self._stopping = False

    def run(self) -> int:
        """Run to the end; returns the exit code."""
        self._loop.register(self._signals.fd, self._on_signals)
        for state in self._hosts:
            self._start(state)
        self._loop.run(self)
        self._loop.close()
        code = attempts.job_code(self._ended, self._reached, self._stopping)
        if not self._ended:
            self._say("no agent is left, and none has said how the job has ended"
                      if self._reached else "cannot start: no host can be reached")  # fmt: skip
        return code

    # --- for the event loop -----------------------------------------------------------------------------------

    def take(self, event: object) -> None:
        """Nothing is posted."""

    def look(self) -> None:
        """Nothing shows only by looking."""

    def next_look(self) -> float:
        """Nothing shows only by looking: an hour is as good as never."""
        return time.monotonic() + 3600.0

    def fail(self, error: Exception) -> None:
        """End with an error that nothing in the loop expects: the agents on the hosts end with their connections."""
        raise error

    @property
    def over(self) -> bool:
        """Whether no agent is left that others could join again."""
        return all(state.session is None for state in self._hosts)

    # --- hosts ------------------------------------------------------------------------------------------------

    def _start(self, state: _HostState) -> None:
        if self._stopping:
            return
        remote = shlex.join(module("ftlaunch.nodes.agent.hosts.remote"))
        argv = [*self._spec.nodes.ssh, *_SSH_OPTIONS, state.name, f"exec {remote}"]
        told = self._loop, self._helpers, argv, state.name, self._outlets
        try:
            state.session = HostSession(*told, lambda: self._on_reached(state), lambda code: self._on_end(state, code))
        except OSError as error:
            self._say(f"cannot run `{argv[0]}`: {str(error.strerror).lower()}; `--ssh` names another program")
            self._ended.append(EXIT_USAGE)

    def _on_reached(self, state: _HostState) -> None:
        assert state.session is not None
        others = [one for one in self._hosts if one.session is not None and one.session.reached and one is not state]
        if self._stopping or (state.again and not others):  # there is no job any more that it could join
            state.session.give_up()
            return
        if state.tries:
            self._say(f"{state.name} is reached again: starting its agent")
        self._reached = state.again = True
        state.tries, state.told = 0, ""
        order = agent_order(self._cwd, agent_words(self._spec, state.number, self._words), self._environ)
        state.session.send(json.dumps(order).encode() + b"\n")

    def _on_end(self, state: _HostState, code: int) -> None:
        session, state.session = state.session, None
        assert session is not None
        why = next((word for word in reversed(session.words) if word), f"exit code {code}")
        if not attempts.was_lost(code):
            self._ended.append(code)
            if not session.reached:
                self._say(f"cannot start an agent on {state.name}: {why}")
            return
        state.tries += 1
        if session.reached:
            self._say(f"the connection to {state.name} is lost" if code == attempts.SSH_FAILED
                      else f"the agent of {state.name} was killed ({signal_name(code - 128)})")  # fmt: skip
        elif why != state.told:
            state.told = why
            self._say(f"cannot reach {state.name}: {why}")
        if not self._stopping:
            when = time.monotonic() + attempts.wait_before(state.tries)
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
