"""Has the checkpoint at an address brought into a folder, before a job begins with it. Waits for the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.checkpoints.stores.opening import StoreClosedError, wait_for_answer
from ftlaunch.common.formatting import counted, size
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.helper_process import HelperProcesses

_FETCHER = "ftlaunch.checkpoints.stores.load_fetcher"


class LoadFetch:
    """The checkpoint in a store with which a job is to begin: `load_address` of the job spec."""

    def __init__(self, spec: JobSpec, helpers: HelperProcesses, interrupted: int) -> None:
        """Bring nothing yet.

        Args:
            spec: the job, which has such an address.
            helpers: the job's helper processes.
            interrupted: a descriptor that becomes readable when the job is told to stop.
        """
        self._spec = spec
        self._helpers = helpers
        self._interrupted = interrupted

    def fetch(self, marker: str, locks: Sequence[int], say: Callable[[str], None]) -> None:
        """Bring the checkpoint to the path of `load_checkpoint`.

        Args:
            marker: NAME=VALUE by which leftovers of the job are recognised.
            locks: descriptors of locks that the process holds, too: a successor waits for its end.
            say: shows a sentence to the user.

        Raises:
            StoreClosedError: it cannot be brought, or the job was told to stop.
            OSError: no process can be started.
        """
        address = self._spec.saving.load_address
        fetcher = SaverLink(self._helpers, marker, locks, program=_FETCHER)
        try:
            fetcher.ask({"do": "fetch", "address": address, "target": str(self._spec.saving.load_checkpoint)})
            answer = wait_for_answer(fetcher, self._interrupted)
            while answer.get("did") == "progress":
                say(answer["line"])
                answer = wait_for_answer(fetcher, self._interrupted)
        finally:
            fetcher.close(0.0)
        if "error" in answer:
            raise StoreClosedError(f"cannot load {address}: {answer['error']}")
        for refused in answer["refused"]:
            say(refused)
        steps = ", ".join(map(str, answer["steps"]))
        what = f"step {steps}" if steps else counted(answer["files"], "file")
        say(f"brought {what} from {address} ({size(answer['bytes'])})")
