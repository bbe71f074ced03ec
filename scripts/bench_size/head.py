"""The head of a job of several nodes, in a process as an agent starts it. trial.py starts this program.

python head.py ORDER TERM WORDS...     # the words after `ftlaunch`
"""

from __future__ import annotations

import os
import sys

from ftlaunch.cli.options import read_command_line
from ftlaunch.nodes.agent.head.election import Order
from ftlaunch.nodes.agent.head.main import be_head
from ftlaunch.nodes.agent.main import TOKEN
from ftlaunch.nodes.cluster.membership import facts
from ftlaunch.spec.resolve import resolve
from ftlaunch.system import job_token


def main() -> None:
    """Be the head; write one line to stdout that says what became of it."""
    order, term, *words = sys.argv[1:]
    request = read_command_line(words)
    spec = resolve(request.target, request.args, request.flags, os.environ)
    spec.run_dir.mkdir(parents=True, exist_ok=True)
    token = job_token.read_or_make(spec.run_dir / TOKEN)
    facts.gather(spec)
    write = os.dup(1)
    os.dup2(2, 1)
    be_head(spec, token, write, Order(order.encode(), int(term)))


if __name__ == "__main__":
    main()
