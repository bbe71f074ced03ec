"""Where a node meets the others: from what was asked and what Slurm says to one NodesSpec. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.spec.errors import Given, Origin, SpecError
from ftlaunch.spec.nodes.nodes_spec import LAST_CALL, PORTS, NodesSpec
from ftlaunch.spec.nodes.slurm import step_of
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import LEAST_TOKEN, TOKEN_VARIABLE

_MOST_DIGITS = 10


def from_slurm(asked: Mapping[str, Given], environ: Mapping[str, str]) -> dict[str, Given]:
    """What the Slurm step says about nodes, for settings that nobody gave; nothing where one node was asked for."""
    alone = asked["standalone"].value or (asked["nnodes"].asked and asked["nnodes"].value[1] == 1)
    meeting = asked["rdzv_endpoint"].value is not None or asked["master_addr"].asked
    try:
        step = None if alone else step_of(environ)
    except SpecError:
        if asked["nnodes"].asked and meeting:
            return {}  # Slurm is not needed: how many nodes there are, and where they meet, was said
        raise
    if step is None:
        return {}
    said = {
        "nnodes": Given((step.nodes, step.nodes), str(step.nodes), Origin("environment", "SLURM_STEP_NUM_NODES")),
        "rdzv_id": Given(step.job, step.job, Origin("environment", "SLURM_JOB_ID")),
    }
    most = asked["nnodes"].value[1] if asked["nnodes"].asked else step.nodes
    if step.rank is not None and step.rank < most:  # one beyond those wanted has no place of its own
        said["node_rank"] = Given(step.rank, str(step.rank), Origin("environment", "SLURM_NODEID"))
    if not meeting:
        said["rdzv_endpoint"] = Given(Endpoint(step.host, None), step.host, Origin("environment", step.hosts_in))
    return {name: given for name, given in said.items() if not asked[name].asked}


def nodes_spec(asked: Mapping[str, Given], environ: Mapping[str, str]) -> NodesSpec:
    """The nodes of the job. Raises SpecError where they cannot be."""
    least, most = asked["nnodes"].value or (1, 1)
    rank, wait, timeout = asked["node_rank"], asked["node_wait"], asked["node_timeout"]
    if rank.value is not None and rank.value >= most:
        raise rank.error("node_rank", f"it must be below the number of nodes, which is {most}")
    if wait.value < timeout.value:
        shorter = wait if wait.asked else timeout
        name = "node_wait" if wait.asked else "node_timeout"
        raise shorter.error(name, f"`node_wait` ({wait.raw}) must not be shorter than `node_timeout` ({timeout.raw})")
    token, isolate = _token(environ), asked["isolate_after"].value
    backend = _backend(asked)
    if most == 1:
        return NodesSpec(
            rank=rank.value,
            backend=backend,
            port=PORTS[backend],
            wait=wait.value,
            timeout=timeout.value,
            isolate_after=isolate,
            token=token,
        )
    _check_several(asked)
    address, port = _endpoint(asked, backend)
    last_call = _last_call(asked["rdzv_conf"])
    return NodesSpec(
        least, most, rank.value, address, port, backend, wait.value, timeout.value, isolate, last_call, token
    )


def _last_call(conf: Given) -> float:
    """Seconds, of torchrun's settings of a rendezvous; the others have no meaning here."""
    settings = dict(part.strip().partition("=")[::2] for part in (conf.value or "").split(","))
    text = settings.get("last_call_timeout", f"{LAST_CALL:g}").strip()
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise conf.error("rdzv_conf", "`last_call_timeout` must be a whole number of seconds, 0 or more")
    return float(text)


def _backend(asked: Mapping[str, Given]) -> str:
    given: str | None = asked["rdzv_backend"].value
    if given is not None:
        return given
    several = asked["nnodes"].value is not None and asked["nnodes"].value[1] > 1
    by_master = several and asked["rdzv_endpoint"].value is None and asked["master_addr"].asked
    return "static" if by_master else "c10d"


def _check_several(asked: Mapping[str, Given]) -> None:
    if asked["standalone"].value:
        raise asked["standalone"].error("standalone", f"it means one node, and `nnodes` is {asked['nnodes'].raw}")
    scope = asked["restart_scope"]
    if scope.value == "rank":
        raise scope.error(
            "restart_scope", f"it needs a job of one node, and `nnodes` is {asked['nnodes'].raw}; use job"
        )


def _endpoint(asked: Mapping[str, Given], backend: str) -> tuple[str, int]:
    """Host and port at which the nodes meet."""
    given, master, port = asked["rdzv_endpoint"], asked["master_addr"], asked["master_port"]
    if given.value is not None:
        if given.value.port == 0:
            raise given.error("rdzv_endpoint", "the other nodes cannot know a free port; give a port from 1 to 65535")
        return given.value.host, given.value.port or PORTS[backend]
    if backend == "static" and master.asked:
        return master.value, port.value or PORTS[backend]
    where = "`--rdzv-endpoint HOST:PORT`" if backend == "c10d" else "`--master-addr`"
    raise asked["nnodes"].error("nnodes", f"where do the nodes meet? give {where}, the same on every node")


def _token(environ: Mapping[str, str]) -> str | None:
    token = environ.get(TOKEN_VARIABLE)
    if token is not None and len(token) < LEAST_TOKEN:
        raise SpecError(
            f"cannot use {TOKEN_VARIABLE}: it has {len(token)} characters, and {LEAST_TOKEN} are the fewest allowed"
        )
    return token
