"""Resolves the settings of nodes, and what Slurm says in the environment, to one NodesSpec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.spec.errors import Given, Origin, SpecError
from ftlaunch.spec.nodes.etcd import EtcdSpec, etcd_spec
from ftlaunch.spec.nodes.nodes_spec import LAST_CALL, PORTS, NodesSpec
from ftlaunch.spec.nodes.slurm import step_of
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import LEAST_TOKEN, TOKEN_VARIABLE

_MOST_DIGITS = 10  # digits from which on a number of seconds is refused


def from_slurm(asked: Mapping[str, Given], environ: Mapping[str, str]) -> dict[str, Given]:
    """Return settings of nodes that follow from the Slurm step, for settings that nobody has given.

    A job that is to have a single node takes nothing from Slurm.

    Args:
        asked: all settings.
        environ: environment of this process.

    Raises:
        SpecError: the step cannot be used, and its settings are needed.
    """
    is_single = asked["standalone"].value or (asked["nnodes"].asked and asked["nnodes"].value[1] == 1)
    has_meeting_place = asked["rdzv_endpoint"].value is not None or asked["master_addr"].asked
    in_etcd = asked["rdzv_backend"].value == "etcd"  # then no node of the step is the meeting place
    try:
        step = None if is_single else step_of(environ)
    except SpecError:
        if asked["nnodes"].asked and has_meeting_place:
            return {}  # the number of nodes and their meeting place are known without Slurm
        raise
    if step is None:
        return {}
    settings = {
        "nnodes": Given((step.nodes, step.nodes), str(step.nodes), Origin("environment", "SLURM_STEP_NUM_NODES")),
        "rdzv_id": Given(step.job, step.job, Origin("environment", "SLURM_JOB_ID")),
    }
    most = asked["nnodes"].value[1] if asked["nnodes"].asked else step.nodes
    if step.rank is not None and step.rank < most:  # a node beyond the wanted ones has no place of its own
        settings["node_rank"] = Given(step.rank, str(step.rank), Origin("environment", "SLURM_NODEID"))
    if not has_meeting_place and not in_etcd:
        settings["rdzv_endpoint"] = Given((Endpoint(step.host, None),), step.host, Origin("environment", step.hosts_in))
    return {name: given for name, given in settings.items() if not asked[name].asked}


def nodes_spec(asked: Mapping[str, Given], environ: Mapping[str, str]) -> NodesSpec:
    """Return the nodes of the job.

    Args:
        asked: all settings, those that follow from hosts or Slurm included.
        environ: environment of this process, which may hold secrets.

    Raises:
        SpecError: settings contradict each other, or are missing.
    """
    least, most = asked["nnodes"].value or (1, 1)
    rank = asked["node_rank"]
    wait = asked["node_wait"]
    timeout = asked["node_timeout"]
    if rank.value is not None and rank.value >= most:
        raise rank.error("node_rank", f"it must be below the number of nodes, which is {most}")
    if wait.value < timeout.value:
        shorter = wait if wait.asked else timeout
        name = "node_wait" if wait.asked else "node_timeout"
        raise shorter.error(name, f"`node_wait` ({wait.raw}) must not be shorter than `node_timeout` ({timeout.raw})")
    token = _token(environ)
    backend = _backend(asked)
    common: dict[str, Any] = {
        "rank": rank.value,
        "backend": backend,
        "wait": wait.value,
        "timeout": timeout.value,
        "isolate_after": asked["isolate_after"].value,
        "token": token,
        "hosts": asked["hosts"].value or (),
        "topology": asked["topology"].value,
        "peer_interval": asked["peer_interval"].value,
        "peer_bandwidth": asked["peer_bandwidth"].value,
        "ssh": asked["ssh"].value,
    }
    _check_endpoints(asked["rdzv_endpoint"], backend)
    if most == 1:
        return NodesSpec(port=PORTS[backend], **common)
    _check_several(asked)
    settings = _settings(asked["rdzv_conf"])
    last_call = _last_call(asked["rdzv_conf"], settings)
    address, port, etcd = _meeting_place(asked, backend, settings=settings, environ=environ)
    return NodesSpec(
        least=least,
        most=most,
        address=address,
        port=port,
        last_call=last_call,
        etcd=etcd,
        **common,
    )


def _settings(conf: Given) -> dict[str, str]:
    """Return torchrun's settings of a rendezvous, NAME=VALUE with commas. Names without a meaning here are harmless."""
    settings = {}
    for pair in (conf.value or "").split(","):
        name, _, value = pair.partition("=")
        settings[name.strip()] = value.strip()
    return settings


def _last_call(conf: Given, settings: Mapping[str, str]) -> float:
    """Return the seconds for which a job with its least nodes waits for more. Raises SpecError."""
    text = settings.get("last_call_timeout", f"{LAST_CALL:g}")
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise conf.error("rdzv_conf", "`last_call_timeout` must be a whole number of seconds, 0 or more")
    return float(text)


def _backend(asked: Mapping[str, Given]) -> str:
    """Return the name of the rendezvous backend; static if only the master's address is given."""
    given: str | None = asked["rdzv_backend"].value
    if given is not None:
        return given
    several = asked["nnodes"].value is not None and asked["nnodes"].value[1] > 1
    by_master = several and asked["rdzv_endpoint"].value is None and asked["master_addr"].asked
    return "static" if by_master else "c10d"


def _check_several(asked: Mapping[str, Given]) -> None:
    """Check that no setting demands a single node. Raises SpecError."""
    if asked["standalone"].value:
        raise asked["standalone"].error("standalone", f"it means one node, and `nnodes` is {asked['nnodes'].raw}")
    scope = asked["restart_scope"]
    if scope.value == "rank":
        raise scope.error(
            "restart_scope", f"it needs a job of one node, and `nnodes` is {asked['nnodes'].raw}; use job"
        )


def _check_endpoints(given: Given, backend: str) -> None:
    """Check that only etcd has several endpoints. Raises SpecError."""
    if given.value is not None and len(given.value) > 1 and backend != "etcd":
        allowed = "it must be HOST or HOST:PORT with a port from 1 to 65535; only `--rdzv-backend etcd` takes several"
        raise given.error("rdzv_endpoint", allowed)


def _meeting_place(
    asked: Mapping[str, Given], backend: str, settings: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str | None, int, EtcdSpec | None]:
    """Return host and port at which the nodes meet, and the etcd; the host is None if they meet in etcd.

    Raises:
        SpecError: the settings name no meeting place, or one that is not allowed.
    """
    if backend != "etcd":
        host, port = _endpoint(asked, backend)
        return host, port, None
    if asked["rdzv_endpoint"].value is None:
        raise asked["rdzv_backend"].error(
            "rdzv_backend", "where is etcd? give `--rdzv-endpoint HOST:PORT,...`, the same on every node"
        )
    etcd = etcd_spec(asked["rdzv_endpoint"], asked["rdzv_conf"], settings=settings, environ=environ)
    return None, PORTS[backend], etcd


def _endpoint(asked: Mapping[str, Given], backend: str) -> tuple[str, int]:
    """Return host and port at which the nodes meet without etcd. Raises SpecError."""
    given = asked["rdzv_endpoint"]
    master = asked["master_addr"]
    port = asked["master_port"]
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
    """Return the job's token in the environment, if there is one. Raises SpecError if it is too short."""
    token = environ.get(TOKEN_VARIABLE)
    if token is not None and len(token) < LEAST_TOKEN:
        raise SpecError(
            f"cannot use {TOKEN_VARIABLE}: it has {len(token)} characters, and {LEAST_TOKEN} are the fewest allowed"
        )
    return token
