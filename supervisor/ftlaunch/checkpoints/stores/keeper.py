"""The keeper: a process of its own that keeps a job's committed checkpoints in a store. Never imports torch.

It reads requests (one JSON object a line) from stdin and answers on stdout, as the saver does, at the lowest priority.
When its supervisor is gone (end of stdin), it leaves after the request under way.

    {"do": "open", "store": address, "is_checked": whether the address is known to be one of a store,
     "directory", "memory": directory or empty, "job", "owner", "newer_than": step or null,
     "life": of a job of several nodes, or empty, "adopted": life or empty,
     "take_over": whether to do that at once, "meeting": [address, port] of the job's head, or null on one node}
        wait until an owner on another machine has left, or is lost, and take the store over; if the job has gone on
        elsewhere, quarantine strays and delete the snapshots in memory; bring the newest checkpoint if it is newer than
        step `newer_than` and than those of the directory; null: bring none, but the small files beside them
        -> {"did": "open", "where", "newest": step or -1, "brought": [step, ...], "strays": [step, ...],
            "refused": [{"step", "why"}, ...], "forgotten": step that memory had and that was deleted, or -1,
            "is_behind": whether the directory has a newer step than the store,
            "all_damaged": the steps of the store if none of them is usable, else [],
            "term", "token": of the claim, "lives": of whose memory the job may go on, or null: of any,
            "beside": {name: small file beside the checkpoints},
            "stored": {STEP: checksum of metadata.json, of each usable step of the store}}
        before that, if it has to wait: {"did": "wait", "owner", "seconds": at most}
    {"do": "go_on", "token": of the claim, and what "open" has}: go on in the place of a keeper that has died. If the
        store does not answer, each request tries that again
        -> {"did": "go_on", "newest", "all_damaged", "beside", "stored"}
    {"do": "put_aside", "above": step}: the job begins anew (-1), or goes on from this older step; later steps leave
        the list of usable steps, and their files stay in the store
        -> {"did": "put_aside", "newest", "all_damaged", "is_behind", "beside", "stored"}
    {"do": "publish", "keep", "keep_every", "bandwidth": bytes a second or null}: make the store have what the directory
        has
        -> {"did": "publish", "steps": [...], "bytes", "seconds", "deleted": [...], "newest", "all_damaged", "beside",
            "stored"}
    {"do": "bring_step", "step"}: bring this step, if the directory lacks it
    {"do": "bring_better", "than": step, "healthy_before": step or null}: bring the newest step above `than` that the
        store has whole; with `healthy_before` the newest below that step which is marked healthy
        -> {"did": "bring_step" or "bring_better", "brought": [step, ...], "refused": as above}
    {"do": "bring"}: bring the newest checkpoint if it is newer than those of the directory
        -> {"did": "bring", "newest", "refused", "beside"}

Where nodes have directories of their own (`node_checkpoints.py`), the keeper of the head takes these besides:

    {"do": "bring_newest", "healthy_before": step or null}: bring the newest step that the store has
        -> {"did": "bring_newest", "newest", "all_damaged", "refused", "beside"}
    {"do": "new_folder", "step"}: name a folder of the store for a save -> {"did": "new_folder", "folder"}
    {"do": "parts", "folder", "directory", "names": [...]}: download part files of other nodes -> {"did": "parts"}
    {"do": "commit", "step", "folder", "directory", "keep", "keep_every", "bandwidth"}: upload what the head has, and
        commit
        -> {"did": "commit", "bytes", "seconds", "deleted", "notes", "newest", "beside"}
    {"do": "check", "step"}: fetch the step once more, because a node could not use it
        -> {"did": "check", "newest", "all_damaged", "refused": [{"step", "why"}], or [] if the store has it whole}
    {"do": "delete", "folder"}: delete what was uploaded of a save that has failed -> {"did": "delete"}

and the keeper of each node, which does not open the store:

    {"do": "look", "store", "job"}: find out where the job's head listens -> {"did": "look", "meeting": as above}
    {"do": "attach", "store", "is_checked", "directory", "job"}: use the store -> {"did": "attach"}
    {"do": "upload", "folder", "staging": directory, "bandwidth"}: upload what lies in the directory, and remove it
        -> {"did": "upload", "seconds"}
    {"do": "fetch", "step": step or -1, "token", "beside"}: bring the step, unless it is -1, and the small files beside
        -> {"did": "fetch"}; with an "error", "damaged" says whether the store has nothing of the step that can be used

And both:

    {"do": "hurry"}: an upload under way need not keep to its bandwidth; no answer
    {"do": "leave"}: end

What fails says why in "error", a sentence or the end of one; "overtaken" is true with it if another process keeps the
store now; "has_owner" is true if another process keeps it that this one did not displace. After the former nothing is
ever committed by this process. The heartbeat (`heartbeat.py`) may find that at any
moment, and then says {"did": "heartbeat", "error", "overtaken": true} unasked.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.saver import Requests
from ftlaunch.checkpoints.stores import heartbeat
from ftlaunch.checkpoints.stores.heartbeat import HeartbeatThread, LivingOwnerError
from ftlaunch.checkpoints.stores.node_checkpoints import HeadCheckpoints, NodeCheckpoints
from ftlaunch.checkpoints.stores.store import CheckpointStore, Spent, open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import Brought, ForeignStoreError, OvertakenError, new_folder
from ftlaunch.memory.directory import forget_snapshots
from ftlaunch.spec import checkpoint_stores
from ftlaunch.spec.checks import missing_package
from ftlaunch.spec.errors import RefusedError
from ftlaunch.system.answer_line import write_answer
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.progress import ignore

_NICE = 19
_WAYS_ON = "stop it there, or if that machine is lost start here with --take-over-store"

Answer = dict[str, Any]


class Keeper:
    """Carries requests out, one after another."""

    def __init__(self, is_hurried: Callable[[float], bool], say: Callable[[Answer], bool]) -> None:
        """Know no store yet.

        Args:
            is_hurried: waits up to the given seconds, and returns True as soon as there is a reason to hurry.
            say: writes an answer; called in the thread of the heartbeat, too.
        """
        self._is_hurried = is_hurried
        self._say = say
        self._heartbeat: HeartbeatThread | None = None
        self._opening: Answer = {}  # the request to open, or to go on
        self._limit: Spent = ignore  # of the upload under way
        self._stored: HeadCheckpoints | None = None
        self._of_node: NodeCheckpoints | None = None
        self._verbs: dict[str, Callable[[Answer], Answer]] = {
            "open": self._open, "go_on": self._go_on, "put_aside": self._put_aside, "publish": self._publish,
            "bring": self._bring, "bring_step": self._bring_step, "bring_better": self._bring_better,
            "bring_newest": self._bring_newest, "parts": self._download_parts, "commit": self._commit,
            "check": self._check, "delete": self._delete, "attach": self._attach, "upload": self._upload,
            "fetch": self._fetch, "look": self._look, "new_folder": self._new_folder,
        }  # fmt: skip

    def carry_out(self, request: Answer) -> Answer:
        """Return the answer to a request."""
        about = {"did": request["do"]}
        began = time.monotonic()
        try:
            answer = self._verbs[request["do"]](request)
        except OvertakenError as error:
            return {**about, "error": str(error), "overtaken": True}
        except Damaged as error:
            return {**about, "error": str(error), "overtaken": False, "damaged": True}
        except LivingOwnerError as error:
            return {**about, "error": f"{error}: {_WAYS_ON}", "overtaken": False, "has_owner": True}
        except (ForeignStoreError, ValueError) as error:
            return {**about, "error": str(error), "overtaken": False}
        except OSError as error:
            return {**about, "error": error.strerror or str(error), "overtaken": False}
        return {**about, **answer, "seconds": round(time.monotonic() - began, 4)}

    def _head(self) -> HeadCheckpoints:
        """Return the checkpoints of the store, which this process has opened.

        Raises:
            OvertakenError: another process keeps the store now.
            ForeignStoreError: another job has taken the store meanwhile, or the index cannot be read any more.
            OSError: the store does not answer, or refuses.
        """
        if self._stored is None:
            self._stored = self._take_over_from_dead()
        return self._stored

    @property
    def _node(self) -> NodeCheckpoints:
        assert self._of_node is not None, "the first request is to attach"
        return self._of_node

    def _spent(self, request: Answer) -> Spent:
        """Return what keeps to the bandwidth of a request."""
        bandwidth = request["bandwidth"]
        return ignore if bandwidth is None else Bandwidth(bandwidth, self._is_hurried).spent

    def _count_spent(self, count: int) -> None:
        """Keep to the bandwidth of the upload under way."""
        self._limit(count)

    # --- of a job on one node, and of the head ------------------------------------------------------------------

    def _open(self, request: Answer) -> Answer:
        self._take_opening(request)
        directory = Path(request["directory"])
        store = open_store(request["store"])
        stored = self._checkpoints(store)
        if not request["take_over"]:
            self._wait_for_owner(store, stored)
        is_new = stored.claim()
        self._start_heartbeat(store, stored, request["owner"])
        life = request["life"]
        lives = list(stored.begin_life(life, request["adopted"])) if life else []
        memory = request["memory"]
        strays = stored.quarantine_strays(
            forget_memory=lambda: forget_snapshots(Path(memory)) if memory else None,
        )
        before = {step for step, _ in layout.list_iterations(directory)}
        if request["newer_than"] is None:
            refused = []
            stored.bring_beside()
        else:
            refused = stored.bring(-1 if stored.went_on_elsewhere else request["newer_than"])
        self._stored = stored
        has_memory = stored.went_on_elsewhere and request["newer_than"] is not None
        return {
            **self._facts(),
            "is_behind": stored.is_behind,
            "where": stored.where,
            "brought": sorted({step for step, _ in layout.list_iterations(directory)} - before),
            "strays": strays,
            "refused": [asdict(step) for step in refused],
            "forgotten": request["newer_than"] if has_memory else -1,
            "lives": None if is_new else lives,
            "term": stored.term,
            "token": stored.token,
        }

    def _checkpoints(self, store: CheckpointStore) -> HeadCheckpoints:
        request = self._opening
        return HeadCheckpoints(
            store,
            Path(request["directory"]),
            job=request["job"],
            owner=request["owner"],
            spent=self._count_spent,
        )

    def _take_opening(self, request: Answer) -> None:
        """Note what to open. Raises ValueError if the address was not checked yet, and cannot be used."""
        if not request["is_checked"]:
            request["store"] = _checked(request["store"])
        self._opening = request

    def _go_on(self, request: Answer) -> Answer:
        self._take_opening(request)
        return self._facts()

    def _take_over_from_dead(self) -> HeadCheckpoints:
        """Go on in the place of a keeper of the same supervisor. Raises as `_head` does."""
        request = self._opening
        store = open_store(request["store"])
        stored = self._checkpoints(store)
        # Other nodes may be uploading what the head is to commit, and their folders are not in the index yet.
        stored.claim_again(request["token"], keep_uploads=bool(request["life"]))
        if request["life"]:
            stored.begin_life(request["life"], request["adopted"])
        self._start_heartbeat(store, stored, request["owner"])
        return stored

    def _facts(self) -> Answer:
        stored = self._head()
        return {
            "newest": stored.newest,
            "all_damaged": stored.all_damaged,
            "beside": stored.beside(),
            "stored": stored.digests,
        }

    def _put_aside(self, request: Answer) -> Answer:
        self._head().put_aside(request["above"])
        return {**self._facts(), "is_behind": self._head().is_behind}

    def _publish(self, request: Answer) -> Answer:
        self._limit = self._spent(request)  # another for each upload: a hurry lifts one for good
        published = self._head().publish(request["keep"], request["keep_every"])
        return {**asdict(published), **self._facts()}

    def _bring(self, _: Answer) -> Answer:
        refused = self._head().bring(-1)
        return {**self._facts(), "refused": [asdict(step) for step in refused]}

    def _bring_step(self, request: Answer) -> Answer:
        return _brought(self._head().bring_step(request["step"]))

    def _bring_better(self, request: Answer) -> Answer:
        return _brought(self._head().bring_better(request["than"], request["healthy_before"]))

    # --- of the head, where nodes have directories of their own -------------------------------------------------

    def _bring_newest(self, request: Answer) -> Answer:
        refused = self._head().bring_newest(request["healthy_before"])
        return {**self._facts(), "refused": [asdict(step) for step in refused]}

    def _new_folder(self, request: Answer) -> Answer:
        return {"folder": new_folder(request["step"], self._head().term)}

    def _download_parts(self, request: Answer) -> Answer:
        self._head().download_parts(request["folder"], Path(request["directory"]), request["names"])
        return {}

    def _commit(self, request: Answer) -> Answer:
        committed = self._head().commit_step(
            request["step"],
            request["folder"],
            Path(request["directory"]),
            keep=request["keep"],
            keep_every=request["keep_every"],
            spent=self._spent(request),
        )
        return {**asdict(committed), **self._facts()}

    def _check(self, request: Answer) -> Answer:
        refused = self._head().check(request["step"])
        return {**self._facts(), "refused": [] if refused is None else [asdict(refused)]}

    def _delete(self, request: Answer) -> Answer:
        self._head().delete_folder(request["folder"])
        return {}

    # --- of a node with a directory of its own ------------------------------------------------------------------

    @staticmethod
    def _look(request: Answer) -> Answer:
        return {"meeting": heartbeat.find_meeting(open_store(request["store"]), request["job"])}

    def _attach(self, request: Answer) -> Answer:
        address = request["store"] if request["is_checked"] else _checked(request["store"])
        self._of_node = NodeCheckpoints(
            open_store(address),
            Path(request["directory"]),
            job=request["job"],
            owner="",  # a node does not claim
        )
        return {}

    def _upload(self, request: Answer) -> Answer:
        self._node.upload(Path(request["staging"]), request["folder"], self._spent(request))
        return {}

    def _fetch(self, request: Answer) -> Answer:
        self._node.follow(request["beside"])
        if request["step"] >= 0:
            self._node.fetch(request["step"], request["token"])
        return {}

    # --- whether the job runs elsewhere ---------------------------------------------------------------------------

    def _wait_for_owner(self, store: CheckpointStore, stored: HeadCheckpoints) -> None:
        """Wait until an owner on another machine has left, or is lost.

        Raises:
            LivingOwnerError: the owner lives.
            ForeignStoreError: the store has checkpoints of another job, or an index that cannot be read.
            OSError: the store does not answer, or refuses.
        """
        index = stored.find_other_owner()
        if index is not None:
            heartbeat.wait_until_gone(
                store,
                index,
                pause=self._is_hurried,
                begin_waiting=lambda owner, seconds: self._say({"did": "wait", "owner": owner, "seconds": seconds}),
            )

    def _start_heartbeat(self, store: CheckpointStore, stored: HeadCheckpoints, owner: str) -> None:
        def say_overtaken(other: str) -> None:
            error = f"{other} has taken over the checkpoints in {stored.where}"
            self._say({"did": "heartbeat", "error": error, "overtaken": True})

        meeting = self._opening["meeting"]
        self._heartbeat = HeartbeatThread(
            store,
            stored.token,
            owner=owner,
            overtaken=say_overtaken,
            meeting=None if meeting is None else (meeting[0], meeting[1]),
        )
        self._heartbeat.start()

    def leave(self) -> None:
        """Say in the store that this process leaves."""
        if self._heartbeat is not None:
            self._heartbeat.end()


def _checked(store: str) -> str:
    """Return the address of a store, as a job's settings would have it.

    Raises:
        ValueError: it cannot be used; the message is a sentence without a password, or the end of one.
    """
    try:
        address = checkpoint_stores.address(store)
    except RefusedError as error:
        raise ValueError(error.allowed) from None
    if missing := missing_package(address):
        raise ValueError(missing)
    return address


def _brought(found: Brought) -> Answer:
    return {"brought": list(found.steps), "refused": [asdict(step) for step in found.refused]}


def main() -> int:
    """Serve until stdin ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a signal to the whole group must not tear an upload
    os.nice(_NICE)
    requests = Requests(sys.stdin.fileno())
    writing = threading.Lock()

    def say(answer: Answer) -> bool:
        with writing:
            return write_answer(answer)

    keeper = Keeper(requests.waiting, say)
    for request in requests:
        if request["do"] == "leave":
            break
        if request["do"] == "hurry":
            continue  # what was to be hurried is over
        if not say(keeper.carry_out(request)):
            break
    keeper.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
