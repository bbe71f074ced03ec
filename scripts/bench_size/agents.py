"""A process of many pretended agents, which trial.py starts and controls.

Takes orders on stdin and answers on stdout, each as one JSON object in a line. All agents share one event loop.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pretended_agent import NO_MESSAGE_OF_A_RESTART, PretendedAgent, Surroundings
from timed_loop import TimedLoop

from ftlaunch.cli.options import read_command_line
from ftlaunch.nodes.agent.main import TOKEN, open_probe_socket
from ftlaunch.nodes.cluster.beat_pace import beat_seconds
from ftlaunch.nodes.cluster.membership import facts
from ftlaunch.nodes.cluster.membership.fingerprint import job_of
from ftlaunch.spec.resolve import resolve
from ftlaunch.system import descriptor_limit, job_token

_AT_ONCE = 32  # agents that begin in one turn of the loop, because real agents never begin all in one instant
_WITH_OWN_PROBE = 16  # agents that can end on their own; one socket for each agent would be too many
_MOST = 1 << 16  # bytes of one read


class Agents:
    """All agents of this process."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        """Begin the first agents.

        Args:
            begin: `command`, the words after `ftlaunch`; `first` and `count` of the nodes; `steps`, the seconds of a
                step.
        """
        request = read_command_line(begin["command"])
        spec = resolve(request.target, request.args, request.flags, os.environ)
        self.loop = TimedLoop()
        self._probe = open_probe_socket()
        self._own_probes: dict[int, socket.socket] = {}
        hello = {
            "job": job_of(spec), "host": socket.gethostname(), "rank": -1, "facts": facts.gather(spec).as_dict(),
            "warnings": [], "topology": facts.gather(spec).machine,
        }  # fmt: skip
        assert spec.nodes.address is not None
        self._shared = Surroundings(
            loop=self.loop,
            endpoint=(spec.nodes.address, spec.nodes.port),
            token=job_token.read_or_make(Path(spec.run_dir) / TOKEN),
            hello=hello,
            ranks_each=spec.launch.nproc,
            step_seconds=begin["steps"],
            beat_seconds=beat_seconds(spec.nodes.most, spec.nodes.timeout),
            node_timeout=spec.nodes.timeout,
            find_head=lambda: None,
        )
        self._waiting = list(range(begin["first"], begin["first"] + begin["count"]))
        self.agents: dict[int, PretendedAgent] = {}
        self._orders = b""
        os.set_blocking(0, False)
        self.loop.register(0, self._read_orders)
        self._begin_some()

    def _begin_some(self) -> None:
        beginning = self._waiting[:_AT_ONCE]
        self._waiting = self._waiting[_AT_ONCE:]
        for number in beginning:
            probe = self._probe
            if len(self.agents) < _WITH_OWN_PROBE:
                probe = self._own_probes[number] = open_probe_socket()
            self.agents[number] = PretendedAgent(number, self._shared, probe.getsockname()[1])
        if self._waiting:
            self.loop.call_at(time.monotonic() + 0.005, "begin", self._begin_some)

    # --- orders -----------------------------------------------------------------------------------------------

    def _read_orders(self) -> None:
        block = os.read(0, _MOST)
        if not block:
            self.loop.over = True
            return
        *whole, self._orders = (self._orders + block).split(b"\n")
        for line in whole:
            order = json.loads(line)
            answer = self._orders_by_name[order["do"]](self, order)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    def _summarize(self, order: Mapping[str, Any]) -> dict[str, Any]:
        agents = self.agents.values()
        return {
            "connected": sum(agent.link.alone_since is None for agent in agents),
            "starts": Counter(agent.starts for agent in agents),
            "terms": Counter(agent.terms[-1] if agent.terms else 0 for agent in agents),
            "over": sum(agent.code is not None for agent in agents),
            "left": max(agent.leave_ordered_at for agent in agents),
            "started": max(agent.start_ordered_at for agent in agents),
            "met": max(agent.met for agent in agents),
            "waiting": len(self._waiting),
            "left since": sum(agent.leave_ordered_at > order.get("since", 0.0) for agent in agents),
        }

    def _watch(self, order: Mapping[str, Any]) -> dict[str, Any]:
        for agent in self.agents.values():
            agent.traffic.begin()
        return {}

    def _traffic(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the messages and bytes that a restart has cost each node that took part in it."""
        took_part = [agent for agent in self.agents.values() if agent.traffic.messages["<spawn"]]
        names: Counter[str] = Counter()
        for agent in took_part:
            names.update(agent.traffic.messages)
        counts = sorted(
            sum(count for name, count in agent.traffic.messages.items() if name[1:] not in NO_MESSAGE_OF_A_RESTART)
            for agent in took_part
        )
        return {"names": names, "counts": counts, "bytes": sorted(agent.traffic.bytes for agent in took_part)}

    def _lose_rank(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"at": self.agents[order["agent"]].lose_rank()}

    def _die(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._own_probes[order["agent"]].close()  # as the kernel of a machine without listener, it refuses at once
        return {"at": self.agents[order["agent"]].die()}

    def _fall_silent(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"at": self.agents[order["agent"]].fall_silent()}

    def _finish(self, order: Mapping[str, Any]) -> dict[str, Any]:
        for agent in self.agents.values():
            agent.finish()
        return {}

    _orders_by_name: Mapping[str, Callable[[Agents, Mapping[str, Any]], dict[str, Any]]] = {
        "look": _summarize,
        "watch": _watch,
        "traffic": _traffic,
        "lose rank": _lose_rank,
        "die": _die,
        "fall silent": _fall_silent,
        "finish": _finish,
    }


def main() -> None:
    """Serve until stdin is closed."""
    descriptor_limit.raise_limit()
    Agents(json.loads(sys.argv[1])).loop.run()


if __name__ == "__main__":
    main()
