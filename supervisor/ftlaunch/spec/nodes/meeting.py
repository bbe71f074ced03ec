"""Where a node meets the others: from what was asked and what Slurm says to one NodesSpec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.spec.errors import Given, Origin, SpecError
from ftlaunch.spec.nodes.etcd import EtcdSpec, etcd_spec
from ftlaunch.spec.nodes.nodes_spec import LAST_CALL, PORTS, NodesSpec
from ftlaunch.spec.nodes.slurm import step_of
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import LEAST_TOKEN, TOKEN_VARIABLE

_MOST_DIGITS = 10


def from_slurm(asked: Mapping[str, Given], environ: Mapping[str, str]) -> dict[str, Given]:
    """What the Slurm step says about nodes, for settings that nobody gave; nothing where one node was asked for."""
    alone = asked["standalone"].value or (asked["nnodes"].asked and asked["nnodes"].value[1] == 1)
    meeting = asked["rdzv_endpoint"].value is not None or asked["master_addr"].asked
    in_etcd = asked["rdzv_backend"].value == "etcd"  # no node of the step is one of etcd's members
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
    if not meeting and not in_etcd:
        said["rdzv_endpoint"] = Given((Endpoint(step.host, None),), step.host, Origin("environment", step.hosts_in))
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
    told: dict[str, Any] = {
        "rank": rank.value,
        "backend": backend,
        "wait": wait.value,
        "timeout": timeout.value,
        "isolate_after": isolate,
        "token": token,
        "hosts": asked["hosts"].value or (),
        **{name: asked[name].value for name in ("topology", "peer_interval", "peer_bandwidth", "ssh")},
    }
    _check_endpoints(asked["rdzv_endpoint"], backend)
    if most == 1:
        return NodesSpec(port=PORTS[backend], **told)
    _check_several(asked)
    settings = _settings(asked["rdzv_conf"])
    last_call = _last_call(asked["rdzv_conf"], settings)
    address, port, etcd = _meeting_place(asked, backend, settings, environ)
    return NodesSpec(least, most, address=address, port=port, last_call=last_call, etcd=etcd, **told)


def _settings(conf: Given) -> dict[str, str]:
    """torchrun's settings of a rendezvous; those that are not asked for have no meaning here."""
    pairs = (part.partition("=")[::2] for part in (conf.value or "").split(","))
    return {name.strip(): value.strip() for name, value in pairs}


def _last_call(conf: Given, settings: Mapping[str, str]) -> float:
    """Seconds."""
    text = settings.get("last_call_timeout", f"{LAST_CALL:g}")
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


def _check_endpoints(given: Given, backend: str) -> None:
    if given.value is not None and len(given.value) > 1 and backend != "etcd":
        allowed = "it must be HOST or HOST:PORT with a port from 1 to 65535; only `--rdzv-backend etcd` takes several"
        raise given.error("rdzv_endpoint", allowed)


def _meeting_place(
    asked: Mapping[str, Given], backend: str, settings: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str | None, int, EtcdSpec | None]:
    """Host and port at which the nodes meet, or the etcd in which they do."""
    if backend != "etcd":
        return *_endpoint(asked, backend), None
    if asked["rdzv_endpoint"].value is None:
        raise asked["rdzv_backend"].error(
            "rdzv_backend", "where is etcd? give `--rdzv-endpoint HOST:PORT,...`, the same on every node"
        )
    etcd = etcd_spec(asked["rdzv_endpoint"], asked["rdzv_conf"], settings, environ)
    return None, PORTS[backend], etcd


def _endpoint(asked: Mapping[str, Given], backend: str) -> tuple[str, int]:
    """Host and port at which the nodes meet."""
    given, master, port = asked["rdzv_endpoint"], asked["master_addr"], asked["master_port"]
    if given.value is not None:
        (endpoint,) = given.value
        if endpoint.port == 0:
            raise given.error("rdzv_endpoint", "the other nodes cannot know a free port; give a port from 1 to 65535")
        return endpoint.host, endpoint.port or PORTS[backend]
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
