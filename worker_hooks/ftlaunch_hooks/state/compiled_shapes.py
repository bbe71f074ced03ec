"""Whether torch.compile has recompiled code for other lengths: a resumed process then compiles different kernels.

The first length that compiled code meets is built into its kernels; another length has the code compiled for any
length. A process that resumes meets its lengths in another order, so it has other kernels, which round differently.
Nothing of a compiled function can be saved. What is saved is that this has happened, so that a resume can say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.json_codec import Json

NAME = "compiled_shapes"
_REASONS = ("size mismatch", "stride mismatch")  # of a compilation, as torch words them
_DIFFERS = (
    "torch.compile has compiled code anew for other lengths than it met first (automatic dynamic shapes), and a process"
    " that resumes meets them in another order: its kernels may round otherwise, so this run may differ in the last"
    " bits; torch.compile(dynamic=True), or torch._dynamo.mark_dynamic() of the inputs, compiles for any length at once"
)


class CompiledShapes:
    """Remembers, across the processes of a job, whether code was recompiled for another length."""

    def __init__(self) -> None:
        self._seen = False
        self._compilations = 0

    def collect(self) -> dict[str, Json]:
        """Return the entry to save; empty where no code was recompiled for another length."""
        if not self._seen and (utils := sys.modules.get("torch._dynamo.utils")) is not None:
            # These names are not public. A torch that lacks them counts as one that has not recompiled.
            counters = getattr(utils, "counters", {})
            compilations = counters["frames"]["total"] if "frames" in counters else 0
            if compilations != self._compilations:
                self._compilations = compilations
                metrics: Iterable[object] = getattr(utils, "get_compilation_metrics", list)()
                self._seen = any(_is_for_another_length(compilation) for compilation in metrics)
        return {"kind": NAME, "seen": True} if self._seen else {}

    def resume(self, saved: Mapping[str, Json], *, should_log: bool) -> None:
        """Take over the saved entry; with `should_log`, warn that the run may differ if code was recompiled."""
        self._seen = bool(saved.get("seen"))
        if self._seen and should_log:
            say(_DIFFERS)


def _is_for_another_length(compilation: object) -> bool:
    reason = str(getattr(compilation, "recompile_reason", None) or "")
    return any(words in reason for words in _REASONS)
