"""Exit, error file, log tail -> cause, kind, signature. Pure.

Of several ranks that fail together the one that failed by itself is the culprit; one that died of its peer's
death (a closed connection) is a victim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's, once a process group is up
_TRACEBACK = "Traceback (most recent call last):"
_FAULT = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_COLLECTIVE = re.compile(
    r"Connection closed by peer|Connection reset by peer|[Gg]loo.*(?:closed|timeout|reset|refused)"
    r"|NCCL.*(?:remote process|unhandled system error|timeout)|ncclRemoteError|DistBackendError"
    r"|Broken pipe.*(?:TCPStore|gloo)|recvValue failed|failed to recv, got 0 bytes"
)
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_STATE_ERROR = re.compile(r"^(?:ftlaunch_hooks\.\w+\.)?(?:StateError|SnapshotError): ", re.MULTILINE)
# a script that cannot be compiled has no traceback, only the place
_SYNTAX = re.compile(
    r'^  File "[^"\n]+", line \d+\n(?: .*\n)*(?:SyntaxError|IndentationError|TabError): .*', re.MULTILINE
)
_NO_FRAME = "<no Python frame>"
_TRACE_LINES = 24

SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
}  # fmt: skip
_MEANING = {
    "SIGKILL": "was killed by SIGKILL (by the kernel for lack of memory, a scheduler or a person)",
    "SIGSEGV": "crashed with SIGSEGV (invalid memory access)",
    "SIGBUS": "crashed with SIGBUS (often a full /dev/shm or a truncated file)",
    "SIGABRT": "crashed with SIGABRT (an abort, often a failed assertion in C++)",
    "SIGTERM": "was ended by SIGTERM",
}


@dataclass(frozen=True)
class Evidence:
    """What one rank left behind."""

    rank: int
    returncode: int  # as subprocess: negative is a signal
    step: int  # completed; -1 before it knew
    attached: bool
    loop_left: bool
    error_file: Mapping[str, Any] | None
    log_tail: str
    order: int  # in which its end was seen; equal for those seen at once


@dataclass(frozen=True)
class Cause:
    """Why an attempt failed. `kind` is the class: exception, signal, exit, left-early, comm, port, hang, spawn."""

    kind: str
    rank: int
    step: int
    sentence: str
    signature: str
    trace: str = ""


def classify(evidence: Evidence) -> Cause:
    """The cause of one rank's end."""
    trace = _trace(evidence)
    where = f"after step {evidence.step}" if evidence.step >= 0 else "before its first step"

    def cause(kind: str, what: str, detail: str) -> Cause:
        signature = f"{kind}:{detail}"
        return Cause(kind, evidence.rank, evidence.step, f"rank {evidence.rank} {what} {where}", signature, trace)

    last = _last_line(trace)
    aborted_at_exit = evidence.returncode == -6 and trace.startswith(_TRACEBACK)  # see last_traceback
    if evidence.returncode < 0 and not aborted_at_exit:
        name = SIGNALS.get(-evidence.returncode, f"signal {-evidence.returncode}")
        return cause("signal", _MEANING.get(name, f"was ended by {name}"), name)
    if evidence.returncode == 0:
        return cause("left-early", "left with exit code 0 before its training loop was over,", "0")
    if trace and last:
        kind = "port" if _PORT.search(trace) else "comm" if _COLLECTIVE.search(trace) else "exception"
        return cause(kind, f"failed with {_clip(last)}", _generalise(last))
    return cause("exit", f"exited with code {evidence.returncode}", str(evidence.returncode))


def first_cause(evidences: Sequence[Evidence]) -> Cause:
    """The cause of the attempt's end: the earliest that is no consequence of another rank's end."""
    causes = [(evidence, classify(evidence)) for evidence in evidences]
    return min(causes, key=lambda pair: (pair[1].kind == "comm", pair[0].order, pair[0].rank))[1]


def spawn_failure(rank: int, error: str) -> Cause:
    """The cause when a rank could not be started."""
    return Cause("spawn", rank, -1, f"rank {rank} could not be started: {error}", f"spawn:{error}")


def hang(rank: int, step: int, sentence: str, trace: str) -> Cause:
    """The cause of a hang, told by health."""
    return Cause("hang", rank, step, sentence, "hang", trace)


def _trace(evidence: Evidence) -> str:
    if evidence.error_file is not None:
        message = evidence.error_file.get("message")
        if isinstance(message, Mapping):
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, Mapping) else None
            if isinstance(stack, str) and stack.strip():
                return _shorten(stack)
    return last_traceback(evidence.log_tail)


def last_traceback(log: str) -> str:
    """The last Python traceback (or fatal error with its stacks) in a log, shortened; empty when there is none.

    A fatal error without a Python frame, behind a traceback, is the interpreter ending over it (torch's gloo threads
    abort then): the traceback counts.
    """
    log = _RANK_PREFIX.sub("", log)
    fault = max(_FAULT.finditer(log), key=lambda match: match.start(), default=None)
    begin = log.rfind(_TRACEBACK)
    if fault is not None and fault.start() > begin and (begin < 0 or _NO_FRAME not in log[fault.start() :]):
        return _shorten(log[fault.start() :])
    if begin < 0:
        syntax = _SYNTAX.findall(log)
        return _shorten(syntax[-1]) if syntax else ""
    lines = log[begin:].splitlines()
    end = 1
    while end < len(lines) and (lines[end].startswith(" ") or not lines[end].strip()):
        end += 1
    while end + 1 < len(lines) and lines[end + 1].startswith(("  ", "\t")):  # messages of several lines
        end += 1
    return _shorten("\n".join(lines[: end + 1]))


def _shorten(trace: str) -> str:
    lines = trace.rstrip().splitlines()
    if len(lines) <= _TRACE_LINES:
        return "\n".join(lines)
    half = _TRACE_LINES // 2
    return "\n".join([*lines[:half], f"  ... {len(lines) - 2 * half} lines left out ...", *lines[-half:]])


def _last_line(trace: str) -> str:
    lines = [line for line in trace.splitlines() if line.strip()]
    if lines and lines[0].startswith("Fatal Python error"):
        return lines[0]
    # What follows the last frame is the error; messages may go on, not indented, over several lines.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    flush = [line for line in lines[frames[-1] + 1 if frames else 1 :] if not line[:1].isspace()]
    return flush[0] if flush else (lines[-1] if lines else "")


def _clip(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _generalise(line: str) -> str:
    """Numbers and addresses differ from one time to the next; the error does not."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", _clip(line))


# --- stacks ---------------------------------------------------------------------------------------------

_WAITING = re.compile(
    r"torch/(?:distributed|autograd)/|torch/nn/parallel/distributed|/store\.py|multiprocessing/connection"
    r"|ftlaunch_hooks/page\.py"  # for a snapshot of theirs, or for rank 0's word
)


def waits_for_peers(stack: str) -> bool | None:
    """Whether the main thread's innermost frame in a faulthandler dump is one that waits for other ranks.

    None when there is no dump: the process did not answer.
    """
    frames = main_thread(stack)
    if not frames:
        return None
    return bool(_WAITING.search(frames[0]))


def main_thread(stack: str) -> list[str]:
    """The frames of the main thread, innermost first. faulthandler writes the main thread last."""
    threads = re.split(r"^(?:Current t|T)hread 0x[0-9a-f]+[^\n]*\n", stack, flags=re.MULTILINE)
    if len(threads) < 2:
        return []
    return [line.strip() for line in threads[-1].splitlines() if line.startswith("  File ")]
