"""Diagnoses the end of a rank from exit status, error file, log, kernel log and rules: cause, class, signature. Pure.

If several ranks fail together, the rank that failed by itself is the culprit. A rank that failed because a peer had
died (a closed connection), or because a peer did not enter a collective in time, is a victim. `engine/incidents.py`
asks for the cause of an attempt's end.
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
    HANG,
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
_GROUP_FRAME = re.compile(r"^ +\| ")  # the frame that Python draws around an ExceptionGroup
_TYPE = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
_CRASHES = ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")

_VICTIMS = {COMM_TIMEOUT: 1, COMM: 2}
"""kinds of victims; the greater the number, the less the failure says about the beginning of the incident"""
_PERMANENT = (NO_TORCH, SECOND_LAUNCHER)
"""kinds of failures that would repeat in every attempt"""
LONG_LIFE_SECONDS = 600.0
"""seconds after which a rank that does not report its steps is assumed to have completed some"""


@dataclass(frozen=True)
class Evidence:
    """What is known of a rank that has ended."""

    rank: int
    returncode: int  # as in subprocess: a negative number is a signal
    step: int  # newest step that the rank completed; -1 if the rank did not know its step
    seen: int  # optimizer steps that were observed in a script without hooks
    error_file: Mapping[str, Any] | None  # torchelastic's error file, as parsed JSON
    log_tail: str  # end of the rank's log
    order: int  # position in the order in which ends were seen; equal for ends that were seen at once
    pid: int = 0
    lived: float = 0.0  # seconds between the rank's start and its end
    kernel: str = ""  # lines of the kernel log since the attempt began
    final: bool = False  # the hooks have said that the error would repeat in every attempt
    steps_unknown: bool = False  # the rank trains, and no optimizer of torch.optim makes its steps
    lost: str = ""  # a sentence, if the rank's node is lost or has not started the rank


@dataclass(frozen=True)
class Cause:
    """Why an attempt failed."""

    kind: str  # the class: one of cause_kinds.py, or of the rules
    rank: int  # the culprit; -1 if no rank is to blame
    step: int  # newest step that the culprit completed; -1 if unknown
    sentence: str  # for people
    signature: str  # equal for failures that count as the same
    trace: str = ""  # traceback or stacks of the culprit; empty if there are none
    action: str = "restart"  # of the rule: restart, wait or give-up
    final: bool = False  # the failure would repeat in every attempt


def classify(evidence: Evidence, rules: Sequence[FaultRule]) -> Cause:
    """Return the cause of the end of one rank."""
    if evidence.lost:
        return _cause_without_exit(
            kind=NODE_LOST,
            rank=evidence.rank,
            step=evidence.step,
            sentence=evidence.lost,
            signature=NODE_LOST,
            rules=rules,
        )
    trace = _trace(evidence)
    facts = _facts(evidence, trace)
    rule = first_fitting(rules, facts)
    what, detail = _what(facts, trace)
    where = _where(evidence)
    meaning = f" ({rule.meaning}{_memory(evidence)})" if rule.meaning else ""
    return Cause(
        kind=rule.kind,
        rank=evidence.rank,
        step=evidence.step,
        sentence=f"rank {evidence.rank} {what} {where}{meaning}",
        signature=f"{rule.kind}:{detail}",
        trace=shortened(trace),
        action=rule.action,
        final=evidence.final or rule.kind in _PERMANENT,
    )


def first_cause(evidences: Sequence[Evidence], rules: Sequence[FaultRule]) -> Cause:
    """Return the cause of the end of an attempt: the earliest failure that no other rank's end explains.

    Args:
        evidences: the ranks that have failed; not empty.
        rules: the job's fault rules.
    """
    causes = [(evidence, classify(evidence, rules)) for evidence in evidences]
    return min(causes, key=lambda pair: (_VICTIMS.get(pair[1].kind, 0), pair[0].order, pair[0].rank))[1]


def is_victim(cause: Cause) -> bool:
    """Return whether another rank is to blame."""
    return cause.kind in _VICTIMS


def aborts_over_timeout(signum: int, log: str, rules: Sequence[FaultRule]) -> bool:
    """Return whether a rank is being aborted because a collective timed out, as NCCL's watchdog does.

    Args:
        signum: the signal that is ending the rank.
        log: the end of the rank's log.
        rules: the job's fault rules.
    """
    ended_by = signal_name(signum)
    return ended_by == "SIGABRT" and first_fitting(rules, Facts(signal=ended_by, log=log)).kind == COMM_TIMEOUT


def spawn_failure(rank: int, error: str, rules: Sequence[FaultRule]) -> Cause:
    """Return the cause for a rank that could not be started."""
    return _cause_without_exit(
        kind="spawn",
        rank=rank,
        step=-1,
        sentence=f"rank {rank} could not be started: {error}",
        signature=f"spawn:{error}",
        rules=rules,
    )


def hang(rank: int, step: int, sentence: str, trace: str, rules: Sequence[FaultRule]) -> Cause:
    """Return the cause for a hang that `health/hang_detection.py` has detected."""
    return _cause_without_exit(
        kind=HANG, rank=rank, step=step, sentence=sentence, signature=HANG, rules=rules, trace=trace
    )


def slow(rank: int, step: int, sentence: str) -> Cause:
    """Return the cause for a restart that the job asks for because `health/stragglers.py` has found a slow rank."""
    return Cause(kind=SLOW, rank=rank, step=step, sentence=sentence, signature=SLOW)


def _cause_without_exit(
    *, kind: str, rank: int, step: int, sentence: str, signature: str, rules: Sequence[FaultRule], trace: str = ""
) -> Cause:
    """Return a cause that the supervisor detected without an exit status; a rule adds its meaning and action."""
    rule = first_fitting(rules, Facts(how=kind))
    meaning = f" ({rule.meaning})" if rule.meaning else ""
    return Cause(
        kind=kind,
        rank=rank,
        step=step,
        sentence=f"{sentence}{meaning}",
        signature=signature,
        trace=trace,
        action=rule.action,
    )


def _facts(evidence: Evidence, trace: str) -> Facts:
    """Return the facts that rules are compared with."""
    errors = _errors(trace)
    kernel = _kernel_lines_about(evidence.pid, errors, evidence.kernel)
    facts = Facts(log=evidence.log_tail, kernel=kernel, before_first_step=_before_first_step(evidence))
    # An abort behind a traceback is the interpreter ending because of the exception: see last_traceback().
    aborted_at_exit = evidence.returncode == -6 and trace.startswith(TRACEBACK)
    if evidence.returncode < 0 and not aborted_at_exit:
        return replace(facts, signal=signal_name(-evidence.returncode))  # the script has dealt with any traceback
    if evidence.returncode == 0:
        return replace(facts, how="left-early")
    code = evidence.returncode if evidence.returncode > 0 else None
    last = _last_line(trace)
    kind = _TYPE.match(last)
    if code == 1 and kind and kind[1] == "KeyboardInterrupt":
        # Python ends such a process by SIGINT, unless an excepthook or an atexit function has called eval() or exec()
        # meanwhile, as the import of a module with a named tuple does: then CPython forgets the interrupt.
        return replace(facts, signal="SIGINT")
    return replace(facts, exit=code, exception=kind[1] if kind else last and ANY, error=errors)


def _what(facts: Facts, trace: str) -> tuple[str, str]:
    """Return what a rank did, in words, and the detail that tells this failure from others of its kind."""
    if facts.signal in _CRASHES:
        return f"crashed with {facts.signal}", facts.signal
    if facts.signal:
        verb = "killed by" if facts.signal == "SIGKILL" else "ended by"
        return f"was {verb} {facts.signal}", facts.signal
    if facts.how == "left-early":
        return "left with exit code 0 before its training loop was over,", "0"
    if last := _last_line(trace):
        return f"failed with {_clip(last)}", _generalise(last)
    return f"exited with code {facts.exit}", str(facts.exit)


def _where(evidence: Evidence) -> str:
    """Return how far the rank had come, in words."""
    if evidence.step > 0:
        return f"after step {evidence.step}"
    if evidence.seen:
        return f"after {evidence.seen} optimizer steps"
    if not _before_first_step(evidence):
        why = " (its steps are not known: no optimizer of torch.optim makes them)" if evidence.steps_unknown else ""
        return f"{duration(evidence.lived)} after its start{why}"
    return "in its first step" if evidence.step == 0 else "before its first step"


def _before_first_step(evidence: Evidence) -> bool:
    """Return whether the job had completed no step at all, as far as this rank knew.

    A rank that does not report its steps is assumed to have completed some once the rank has lived for
    LONG_LIFE_SECONDS. A rank whose steps no optimizer makes is assumed to have completed some from the beginning.
    """
    if evidence.step < 0 and (evidence.seen or evidence.steps_unknown):
        return False
    return evidence.step == 0 or (evidence.step < 0 and evidence.lived < LONG_LIFE_SECONDS)


def _kernel_lines_about(pid: int, errors: str, kernel: str) -> str:
    """Return the kernel's lines, but for those that report the killing of unrelated processes.

    Related are the process itself and each process whose number is in the text of the errors.
    """
    ours = {str(pid), *re.findall(r"\d+", errors)}
    killed = ((_KILLED_PID.search(line), line) for line in kernel.splitlines())
    return "\n".join(line for match, line in killed if match is None or match[1] in ours)


def _memory(evidence: Evidence) -> str:
    """Return how much memory a rank had that the kernel killed for lack of memory, and how much was allowed."""
    for line in evidence.kernel.splitlines():
        if (killed := _KILLED_PID.search(line)) and int(killed[1]) == evidence.pid and "ut of memory" in line:
            had = sum(int(number) << 10 for number in _RSS.findall(line))
            limit = _LIMIT.search(evidence.kernel)
            allowed = f", {size(int(limit[1]))} are allowed" if limit else ""
            return f": it had {size(had)}{allowed}"
    return ""


def _errors(trace: str) -> str:
    """Return the text of all exceptions of a traceback, causes and contexts included, without source lines."""
    lines = (_GROUP_FRAME.sub("", line) for line in trace.splitlines())
    return "\n".join(line for line in lines if line and not line[0].isspace())


def _trace(evidence: Evidence) -> str:
    """Return the traceback from the error file, or else the last traceback of the log; empty if there is none."""
    if evidence.error_file is not None:
        message = evidence.error_file.get("message")
        if isinstance(message, Mapping):
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, Mapping) else None
            if isinstance(stack, str) and stack.strip():
                return stack.rstrip()
    return last_traceback(evidence.log_tail)


def _last_line(trace: str) -> str:
    """Return the line of a trace that names the error; empty for an empty trace."""
    lines = [line for line in outermost_of_group(trace.splitlines()) if line.strip()]
    if lines and lines[0].startswith("Fatal Python error"):
        return lines[0]
    # The error follows the last frame. Its message may continue over several lines that are not indented.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    behind_frames = frames[-1] + 1 if frames else 1
    unindented = [line for line in lines[behind_frames:] if not line[:1].isspace()]
    last = lines[-1] if lines else ""
    if unindented:
        last = unindented[0]
    return last.removeprefix("__main__.")  # Python 3.10 shows the module where a script's own class ends the process


def _clip(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _generalise(line: str) -> str:
    """Return the line without numbers and addresses, which differ each time although the error is the same."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", _clip(line))
