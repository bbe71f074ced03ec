"""Resolves the settings of nodes, and what a scheduler says in the environment, to one NodesSpec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.spec.errors import Given, Origin, SpecError, shown
from ftlaunch.spec.meeting_stores.store import MeetingStore
from ftlaunch.spec.meeting_stores.table import STORES
from ftlaunch.spec.nodes.nodes_spec import LAST_CALL_SECONDS, PORTS, NodesSpec
from ftlaunch.spec.parsers import Endpoint
from ftlaunch.system.job_token import LEAST_TOKEN, TOKEN_VARIABLE
from ftlaunch_contract.schedulers import table as schedulers
from ftlaunch_contract.schedulers.scheduler import SchedulerError, Step

_MOST_DIGITS = 10  # digits from which on a number of seconds is refused


def from_scheduler(settings: Mapping[str, Given], environ: Mapping[str, str]) -> dict[str, Given]:
    """Return settings of nodes that follow from the scheduler's step, for settings that nobody has given.

    A job that is to have a single node takes nothing from the scheduler.

    Args:
        settings: all settings.
        environ: environment of this process.

    Raises:
        SpecError: the step cannot be used, and its settings are needed.
    """
    is_single = settings["standalone"].value or (settings["nnodes"].asked and settings["nnodes"].value[1] == 1)
    has_meeting_place = settings["rdzv_endpoint"].value is not None or settings["master_addr"].asked
    in_store = settings["rdzv_backend"].value in STORES  # then no node of the step is the meeting place
    try:
        step = None if is_single else _step_of(environ)
    except SpecError:
        if settings["nnodes"].asked and has_meeting_place:
            return {}  # the number of nodes and their meeting place are known without the scheduler
        raise
    if step is None:
        return {}
    derived = {
        "nnodes": Given((step.nodes, step.nodes), str(step.nodes), Origin("environment", step.nodes_in)),
        "rdzv_id": Given(step.job, step.job, Origin("environment", step.job_in)),
    }
    most = settings["nnodes"].value[1] if settings["nnodes"].asked else step.nodes
    if step.rank is not None and step.rank < most:  # a node beyond the wanted ones has no place of its own
        derived["node_rank"] = Given(step.rank, str(step.rank), Origin("environment", step.rank_in))
    if not has_meeting_place and not in_store:
        first = Given((Endpoint(step.first_host, None),), step.first_host, Origin("environment", step.hosts_in))
        derived["rdzv_endpoint"] = first
    return {name: given for name, given in derived.items() if not settings[name].asked}


def _step_of(environ: Mapping[str, str]) -> Step | None:
    """Return the scheduler's step of several nodes; None without one. Raises SpecError if the step cannot be used."""
    try:
        return schedulers.step_of(environ)
    except SchedulerError as error:
        if error.variable is None:
            raise SpecError(str(error)) from None
        raise SpecError(f"cannot use {error.variable}={shown(environ[error.variable])}: {error}") from None


def nodes_spec(settings: Mapping[str, Given], environ: Mapping[str, str]) -> NodesSpec:
    """Return the nodes of the job.

    Args:
        settings: all settings, those that follow from hosts or Slurm included.
        environ: environment of this process, which may hold secrets.

    Raises:
        SpecError: settings contradict each other, or are missing.
    """
    least, most = settings["nnodes"].value or (1, 1)
    rank = settings["node_rank"]
    wait = settings["node_wait"]
    timeout = settings["node_timeout"]
    if rank.value is not None and rank.value >= most:
        raise rank.error("node_rank", f"it must be below the number of nodes, which is {most}")
    if wait.value < timeout.value:
        shorter = wait if wait.asked else timeout
        name = "node_wait" if wait.asked else "node_timeout"
        raise shorter.error(name, f"`node_wait` ({wait.raw}) must not be shorter than `node_timeout` ({timeout.raw})")
    token = _token(environ)
    backend = _backend(settings)
    common: dict[str, Any] = {
        "rank": rank.value,
        "backend": backend,
        "wait": wait.value,
        "timeout": timeout.value,
        "isolate_after": settings["isolate_after"].value,
        "token": token,
        "hosts": settings["hosts"].value or (),
        "topology": settings["topology"].value,
        "peer_interval": settings["peer_interval"].value,
        "peer_bandwidth": settings["peer_bandwidth"].value,
        "ssh": settings["ssh"].value,
    }
    _check_endpoints(settings["rdzv_endpoint"], backend)
    if most == 1:
        return NodesSpec(port=_default_port(backend), **common)
    _check_several(settings)
    rdzv_settings = _settings(settings["rdzv_conf"])
    last_call = _last_call(settings["rdzv_conf"], rdzv_settings)
    authenticates = _authenticates(settings["rdzv_conf"], rdzv_settings, token)
    address, port, store = _meeting_place(settings, backend, rdzv_settings=rdzv_settings, environ=environ)
    return NodesSpec(
        least=least,
        most=most,
        address=address,
        port=port,
        last_call=last_call,
        authenticates=authenticates,
        store=store,
        **common,
    )


def _settings(conf: Given) -> dict[str, str]:
    """Return torchrun's settings of a rendezvous, NAME=VALUE with commas. Names without a meaning here are harmless."""
    rdzv_settings = {}
    for pair in (conf.value or "").split(","):
        name, _, value = pair.partition("=")
        rdzv_settings[name.strip()] = value.strip()
    return rdzv_settings


def _last_call(conf: Given, rdzv_settings: Mapping[str, str]) -> float:
    """Return the seconds for which a job with its least nodes waits for more. Raises SpecError."""
    text = rdzv_settings.get("last_call_timeout", f"{LAST_CALL_SECONDS:g}")
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise conf.error("rdzv_conf", "`last_call_timeout` must be a whole number of seconds, 0 or more")
    return float(text)


def _authenticates(conf: Given, rdzv_settings: Mapping[str, str], token: str | None) -> bool:
    """Return whether nodes must know a token. Raises SpecError."""
    text = rdzv_settings.get("auth", "token")
    if text not in ("token", "none"):
        raise conf.error("rdzv_conf", "`auth` must be token or none")
    if text == "none" and token is not None:
        raise conf.error("rdzv_conf", f"`auth=none` means that there is no token, and {TOKEN_VARIABLE} is set")
    return text == "token"


def _backend(settings: Mapping[str, Given]) -> str:
    """Return the name of the rendezvous backend; static if only the master's address is given."""
    given: str | None = settings["rdzv_backend"].value
    if given is not None:
        return given
    several = settings["nnodes"].value is not None and settings["nnodes"].value[1] > 1
    by_master = several and settings["rdzv_endpoint"].value is None and settings["master_addr"].asked
    return "static" if by_master else "c10d"


def _check_several(settings: Mapping[str, Given]) -> None:
    """Check that no setting demands a single node. Raises SpecError."""
    if settings["standalone"].value:
        raise settings["standalone"].error("standalone", f"it means one node, and `nnodes` is {settings['nnodes'].raw}")
    scope = settings["restart_scope"]
    if scope.value == "rank":
        raise scope.error(
            "restart_scope", f"it needs a job of one node, and `nnodes` is {settings['nnodes'].raw}; use job"
        )


def _check_endpoints(given: Given, backend: str) -> None:
    """Check that only a meeting store has several endpoints. Raises SpecError."""
    if given.value is not None and len(given.value) > 1 and backend not in STORES:
        several = " or ".join(f"`--rdzv-backend {word}`" for word in STORES)
        allowed = f"it must be HOST or HOST:PORT with a port from 1 to 65535; only {several} takes several"
        raise given.error("rdzv_endpoint", allowed)


def _meeting_place(
    settings: Mapping[str, Given], backend: str, rdzv_settings: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str | None, int, MeetingStore | None]:
    """Return host and port at which the nodes meet, and their store; the host is None if they meet in a store.

    Raises:
        SpecError: the settings name no meeting place, or one that is not allowed.
    """
    store = STORES.get(backend)
    if store is None:
        host, port = _endpoint(settings, backend)
        return host, port, None
    if settings["rdzv_endpoint"].value is None:
        raise settings["rdzv_backend"].error(
            "rdzv_backend", f"where is {backend}? give `--rdzv-endpoint HOST:PORT,...`, the same on every node"
        )
    described = store.parse(settings["rdzv_endpoint"], settings["rdzv_conf"], settings=rdzv_settings, environ=environ)
    return None, store.port, described


def _default_port(backend: str) -> int:
    """Return the port at which nodes meet where nobody names one."""
    store = STORES.get(backend)
    return PORTS[backend] if store is None else store.port


def _endpoint(settings: Mapping[str, Given], backend: str) -> tuple[str, int]:
    """Return host and port at which the nodes meet without a store. Raises SpecError."""
    given = settings["rdzv_endpoint"]
    master = settings["master_addr"]
    port = settings["master_port"]
    if given.value is not None:
        (endpoint,) = given.value
        if endpoint.port == 0:
            raise given.error("rdzv_endpoint", "the other nodes cannot know a free port; give a port from 1 to 65535")
        return endpoint.host, endpoint.port or PORTS[backend]
    if backend == "static" and master.asked:
        return master.value, port.value or PORTS[backend]
    where = "`--rdzv-endpoint HOST:PORT`" if backend == "c10d" else "`--master-addr`"
    raise settings["nnodes"].error("nnodes", f"where do the nodes meet? give {where}, the same on every node")


def _token(environ: Mapping[str, str]) -> str | None:
    """Return the job's token in the environment, if there is one. Raises SpecError if it is too short."""
    token = environ.get(TOKEN_VARIABLE)
    if token is not None and len(token) < LEAST_TOKEN:
        raise SpecError(
            f"cannot use {TOKEN_VARIABLE}: it has {len(token)} characters, and {LEAST_TOKEN} are the fewest allowed"
        )
    return token
