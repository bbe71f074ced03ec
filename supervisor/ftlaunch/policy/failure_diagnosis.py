"""Diagnoses the end of a rank from exit status, error file, log and rules: cause, class, signature. Pure.

Of several ranks that fail together, the rank that failed by itself is the culprit; a rank that failed because a peer
had died (a closed connection), or did not come to a collective in its time, is a victim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.common.formatting import duration, size
from ftlaunch.common.signal_names import signal_name
from ftlaunch.policy.cause_kinds import (
    COMM,
    COMM_TIMEOUT,
    NO_TORCH,
    NODE_LOST,
    SECOND_LAUNCHER,
    SLOW,
)
from ftlaunch.policy.fault_rules import ANY, Facts, FaultRule, first_fitting
from ftlaunch.policy.tracebacks import TRACEBACK, last_traceback, outermost_of_group, shortened

_RSS = re.compile(r"(?:anon|file|shmem)-rss:(\d+)kB")
_LIMIT = re.compile(r"limit (\d+) bytes$", re.MULTILINE)
_KILLED_PID = re.compile(r"Killed process (\d+)")
_GROUP_FRAME = re.compile(r"^ +\| ")  # what Python draws around an ExceptionGroup
_TYPE = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
_CRASHES = ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")

_VICTIMS = {COMM_TIMEOUT: 1, COMM: 2}
"""kinds of ranks that failed because another rank had; the greater, the less it says of the beginning"""
_COME_AGAIN = (NO_TORCH, SECOND_LAUNCHER)
"""kinds of what would come again in every attempt"""
# seconds: an attempt that does not tell its steps and lived so long counts as one that made some
LONG_LIFE = 600.0


@dataclass(frozen=True)
class Evidence:
    """What one rank left behind."""

    rank: int
    returncode: int  # as subprocess: negative is a signal
    step: int  # completed; -1 before it knew
    seen: int  # optimizer steps that were seen in a script without hooks
    error_file: Mapping[str, Any] | None
    log_tail: str
    order: int  # in which its end was seen; equal for those seen at once
    pid: int = 0
    lived: float = 0.0  # seconds
    kernel: str = ""  # what the kernel has said and counted since the attempt began
    final: bool = False  # the hooks in it have said that its error would come again in every attempt
    steps_unknown: bool = False  # it trains, and none of torch's optimizers makes its steps
    lost: str = ""  # its node is lost, or has not started it: the sentence that says so


@dataclass(frozen=True)
class Cause:
    """Why an attempt failed. `kind` is the class: one of cause_kinds.py, or of the rules."""

    kind: str
    rank: int
    step: int
    sentence: str
    signature: str
    trace: str = ""
    action: str = "restart"  # what the rule says: restart, wait or give-up
    final: bool = False  # it would come again in every attempt


def classify(evidence: Evidence, rules: Sequence[FaultRule]) -> Cause:
    """The cause of one rank's end."""
    if evidence.lost:
        return _told(NODE_LOST, evidence.rank, evidence.step, evidence.lost, NODE_LOST, "", rules)
    trace = _trace(evidence)
    facts = _facts(evidence, trace)
    rule = first_fitting(rules, facts)
    what, detail = _what(facts, trace)
    where = _where(evidence)
    meaning = f" ({rule.meaning}{_memory(evidence)})" if rule.meaning else ""
    sentence = f"rank {evidence.rank} {what} {where}{meaning}"
    signature = f"{rule.kind}:{detail}"
    told = rule.kind, evidence.rank, evidence.step, sentence, signature, shortened(trace), rule.action
    return Cause(*told, final=evidence.final or rule.kind in _COME_AGAIN)


def first_cause(evidences: Sequence[Evidence], rules: Sequence[FaultRule]) -> Cause:
    """The cause of the attempt's end: the earliest that is no consequence of another rank's end."""
    causes = [(evidence, classify(evidence, rules)) for evidence in evidences]
    return min(causes, key=lambda pair: (_VICTIMS.get(pair[1].kind, 0), pair[0].order, pair[0].rank))[1]


def is_victim(cause: Cause) -> bool:
    """Whether another rank is to blame."""
    return cause.kind in _VICTIMS


def aborts_over_timeout(signum: int, log: str, rules: Sequence[FaultRule]) -> bool:
    """Whether a rank that a signal is ending has timed out in a collective: NCCL's watchdog aborts it. log: its end."""
    ended_by = signal_name(signum)
    return ended_by == "SIGABRT" and first_fitting(rules, Facts(signal=ended_by, log=log)).kind == COMM_TIMEOUT


def spawn_failure(rank: int, error: str, rules: Sequence[FaultRule]) -> Cause:
    """The cause when a rank could not be started."""
    sentence = f"rank {rank} could not be started: {error}"
    return _told("spawn", rank, -1, sentence, f"spawn:{error}", "", rules)


def hang(rank: int, step: int, sentence: str, trace: str, rules: Sequence[FaultRule]) -> Cause:
    """The cause of a hang; hang_detection.py has seen it."""
    return _told("hang", rank, step, sentence, "hang", trace, rules)


def slow(rank: int, step: int, sentence: str) -> Cause:
    """The cause of a restart because of a slow rank, which stragglers.py has seen, where the job asks for that."""
    return Cause(SLOW, rank, step, sentence, SLOW)


def _told(
    how: str, rank: int, step: int, sentence: str, signature: str, trace: str, rules: Sequence[FaultRule]
) -> Cause:  # fmt: skip
    rule = first_fitting(rules, Facts(how=how))
    meaning = f" ({rule.meaning})" if rule.meaning else ""
    return Cause(how, rank, step, f"{sentence}{meaning}", signature, trace, rule.action)


def _facts(evidence: Evidence, trace: str) -> Facts:
    """The facts that the rules look at."""
    errors = _errors(trace)
    kernel = _about(evidence.pid, errors, evidence.kernel)
    heard = Facts(log=evidence.log_tail, kernel=kernel, before_first_step=_before_first_step(evidence))
    aborted_at_exit = evidence.returncode == -6 and trace.startswith(TRACEBACK)  # see last_traceback
    if evidence.returncode < 0 and not aborted_at_exit:
        return replace(heard, signal=signal_name(-evidence.returncode))  # the script has dealt with any traceback
    if evidence.returncode == 0:
        return replace(heard, how="left-early")
    code = evidence.returncode if evidence.returncode > 0 else None
    last = _last_line(trace)
    kind = _TYPE.match(last)
    if code == 1 and kind and kind[1] == "KeyboardInterrupt":
        # Python ends such a process by SIGINT, unless an excepthook or an atexit function has called eval() or exec()
        # meanwhile, as the import of a module with a named tuple does: then CPython forgets the interrupt.
        return replace(heard, signal="SIGINT")
    return replace(heard, exit=code, exception=kind[1] if kind else last and ANY, error=errors)


def _what(facts: Facts, trace: str) -> tuple[str, str]:
    """What a rank did, for the sentence, and the detail that tells this failure from others."""
    if facts.signal:
        verb = "killed by" if facts.signal == "SIGKILL" else "ended by"
        crashed = facts.signal in _CRASHES
        return f"crashed with {facts.signal}" if crashed else f"was {verb} {facts.signal}", facts.signal
    if facts.how == "left-early":
        return "left with exit code 0 before its training loop was over,", "0"
    if last := _last_line(trace):
        return f"failed with {_clip(last)}", _generalise(last)
    return f"exited with code {facts.exit}", str(facts.exit)


def _where(evidence: Evidence) -> str:
    if evidence.step > 0:
        return f"after step {evidence.step}"
    if evidence.seen:
        return f"after {evidence.seen} optimizer steps"
    if not _before_first_step(evidence):
        why = " (its steps are not known: no optimizer of torch.optim makes them)" if evidence.steps_unknown else ""
        return f"{duration(evidence.lived)} after its start{why}"
    return "in its first step" if evidence.step == 0 else "before its first step"


def _before_first_step(evidence: Evidence) -> bool:
    """Whether the job had completed no step at all, as far as this rank knew.

    A rank that does not tell its steps is taken to have made some once it has lived for LONG_LIFE. Nothing is known of
    one that trains without an optimizer.
    """
    if evidence.step < 0 and (evidence.seen or evidence.steps_unknown):
        return False
    return evidence.step == 0 or (evidence.step < 0 and evidence.lived < LONG_LIFE)


def _about(pid: int, errors: str, kernel: str) -> str:
    """The kernel's lines, without its killing of processes that are neither this one nor named in its error."""
    ours = {str(pid), *re.findall(r"\d+", errors)}
    killed = ((_KILLED_PID.search(line), line) for line in kernel.splitlines())
    return "\n".join(line for match, line in killed if match is None or match[1] in ours)


def _memory(evidence: Evidence) -> str:
    """How much memory a rank had that the kernel killed for lack of it, and how much was allowed."""
    for line in evidence.kernel.splitlines():
        if (killed := _KILLED_PID.search(line)) and int(killed[1]) == evidence.pid and "ut of memory" in line:
            had = sum(int(number) << 10 for number in _RSS.findall(line))
            limit = _LIMIT.search(evidence.kernel)
            allowed = f", {size(int(limit[1]))} are allowed" if limit else ""
            return f": it had {size(had)}{allowed}"
    return ""


def _errors(trace: str) -> str:
    """The text of all exceptions of a traceback, those they came from included; not the source lines."""
    lines = (_GROUP_FRAME.sub("", line) for line in trace.splitlines())
    return "\n".join(line for line in lines if line and not line[0].isspace())


def _trace(evidence: Evidence) -> str:
    if evidence.error_file is not None:
        message = evidence.error_file.get("message")
        if isinstance(message, Mapping):
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, Mapping) else None
            if isinstance(stack, str) and stack.strip():
                return stack.rstrip()
    return last_traceback(evidence.log_tail)


def _last_line(trace: str) -> str:
    lines = [line for line in outermost_of_group(trace.splitlines()) if line.strip()]
    if lines and lines[0].startswith("Fatal Python error"):
        return lines[0]
    # What follows the last frame is the error; messages may go on, not indented, over several lines.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    flush = [line for line in lines[frames[-1] + 1 if frames else 1 :] if not line[:1].isspace()]
    last = flush[0] if flush else (lines[-1] if lines else "")
    return last.removeprefix("__main__.")  # Python 3.10 shows it where a script's own class ends the process


def _clip(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _generalise(line: str) -> str:
    """The line without numbers and addresses, which differ each time while the error is the same."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", _clip(line))
