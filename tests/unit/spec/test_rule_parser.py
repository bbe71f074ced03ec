"""The table of faults: every row has an example, and a job's own rows come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ftlaunch.policy.fault_rules import UNKNOWN, Facts, FaultRule, first_fitting
from ftlaunch.spec.errors import RefusedError
from ftlaunch.spec.parsing.rule_parser import builtin, parse_rules

ROOT = Path(__file__).parents[3]
RULES = builtin()
XID = "NVRM: Xid (PCI:0000:4b:00): 79, pid=42, name=python, GPU has fallen off the bus."
KILLED = "Memory cgroup out of memory: Killed process 42 (python)"


def failed(error: str, **more: Any) -> Facts:
    """A rank that exited with 1 over an exception."""
    return Facts(exit=1, exception=error.partition(":")[0], error=error, **more)


EXAMPLES = [
    ("hang", Facts(how="hang")),
    ("left-early", Facts(how="left-early")),
    ("spawn", Facts(how="spawn")),
    ("host-memory", Facts(signal="SIGKILL", kernel=KILLED)),
    ("host-memory", Facts(signal="SIGKILL", kernel="oom_kill of cgroup /sys/fs/cgroup/job went from 0 to 1")),
    ("host-memory", failed("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", kernel=KILLED)),
    ("host-memory", failed("MemoryError")),
    ("host-memory", failed("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1")),
    ("host-memory", failed("RuntimeError: unable to write to file </torch_42_7>: No space left on device (28)")),
    ("host-memory", failed("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible")),
    ("gpu-memory", failed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")),
    ("gpu-memory", failed("torch.OutOfMemoryError: Allocation on device")),
    ("gpu", failed("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")),
    ("gpu", failed("torch.AcceleratorError: CUDA error: unspecified launch failure")),
    ("gpu", failed("torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink: NVLink down")),
    ("gpu", failed("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    ("gpu", failed("RuntimeError: CUDA error: initialization error", kernel=XID)),
    ("gpu", Facts(signal="SIGABRT", log="what():  CUDA error: unspecified launch failure")),
    ("port", failed("torch.distributed.DistNetworkError: EADDRINUSE: The server socket has failed to bind to :1")),
    ("comm", failed("RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:41")),
    ("comm", failed("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error")),
    ("comm", failed("torch.distributed.DistNetworkError: failed to recv, got 0 bytes")),
    ("comm", Facts(signal="SIGABRT", log="terminate called after throwing an instance of 'gloo::IoException'")),
    ("comm-timeout",
     failed("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting"
            " 1800000ms for recv operation to complete")),
    ("comm-timeout",
     failed("RuntimeError: [gloo/transport/tcp/pair.cc:534] Application timeout caused pair closure")),
    ("comm-timeout", failed("torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0")),
    ("comm-timeout",
     failed("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.")),
    ("comm-timeout",
     failed("torch.distributed.DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(")),
    ("comm-timeout",
     Facts(signal="SIGABRT", log="[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(")),
    ("disk", failed("OSError: [Errno 28] No space left on device: 'model.pt'")),
    ("disk", failed("OSError: [Errno 116] Stale file handle")),
    ("numerical", failed("FloatingPointError: underflow encountered in multiply")),
    ("numerical", failed("ValueError: loss is nan at step 7")),
    ("numerical", failed("RuntimeError: The total norm of order 2.0 for gradients is non-finite, so it cannot be")),
    ("preempted", Facts(exit=1, log="slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO PREEMPTION ***")),
    ("preempted", Facts(signal="SIGTERM")),
    ("killed", Facts(signal="SIGKILL")),
    ("killed", failed("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly")),
    ("no-torch", failed("ModuleNotFoundError: No module named 'torch'", before_first_step=True)),
    ("no-torch", failed("ImportError: cannot use ftlaunch_hooks.attach: /usr/bin/python has no numpy; `pip install"
                        " numpy` (torch comes without it, and the hooks need it)", before_first_step=True)),
    ("no-torch", failed("ImportError: cannot use ftlaunch_hooks.attach: /usr/bin/python has no torch; install the build"
                        " that you train with, or `pip install 'ftlaunch[torch]'`", before_first_step=True)),
    ("second-launcher",
     Facts(exit=1, before_first_step=True, log="RuntimeError: cannot attach: ftlaunch (pid 7) runs this job and saves"
           " to /ck, and this process is none of its ranks: another launcher")),
    ("exception-at-start", failed("ModuleNotFoundError: No module named 'torchdata'", before_first_step=True)),
    ("exception-at-start", failed("NameError: name 'x' is not defined", before_first_step=True)),
    ("exception-at-start",
     Facts(exit=2, log="train.py: error: unrecognized arguments: --lrr", before_first_step=True)),
    ("exception", failed("NameError: name 'x' is not defined")),
    ("exception", failed("torch.AcceleratorError: CUDA error: device-side assert triggered")),
    ("signal", Facts(signal="SIGSEGV")),
    ("signal", Facts(signal="SIGABRT")),
    ("signal", Facts(signal="SIGABRT", log="[c10d] Error while running server: failed to listen")),
    ("signal", Facts(signal="SIGBUS")),
    ("signal", Facts(signal="signal 34")),
    ("killed", Facts(exit=137)),
    ("preempted", Facts(exit=143)),
    ("signal", Facts(exit=134)),
    ("signal", Facts(exit=139)),
    ("exit", Facts(exit=17)),
    ("exception-at-start", Facts(exit=127, before_first_step=True)),
    ("exception-at-start", Facts(exit=126, before_first_step=True)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "facts"), EXAMPLES)
def test_an_example_of_each(kind: str, facts: Facts) -> None:
    assert first_fitting(RULES, facts).kind == kind


def test_no_row_is_without_an_example() -> None:
    hit = {first_fitting(RULES, facts) for _, facts in EXAMPLES}
    assert [rule.row() for rule in RULES if rule not in hit] == []


@pytest.mark.parametrize("error", ["ValueError: could not find Nancy", "KeyError: 'infinity'", "OSError: [Errno 2] x"])
def test_ordinary_errors_stay_ordinary(error: str) -> None:
    assert first_fitting(RULES, failed(error)).kind == "exception"


def test_nothing_fits() -> None:
    assert first_fitting((), Facts(exit=1)) is UNKNOWN
    assert first_fitting(RULES, Facts()) is UNKNOWN


def test_all_that_a_row_names_must_fit_and_the_first_row_counts() -> None:
    rows = [
        {"exit": "17", "log": "link down", "class": "network", "action": "wait"},
        {"exit": 17, "class": "seventeen", "action": "give-up", "meaning": "a bad day"},
    ]
    rules = (*parse_rules(rows), *RULES)
    assert first_fitting(rules, Facts(exit=17, log="one\nthe link down again\n")).kind == "network"
    assert first_fitting(rules, Facts(exit=17, log="link\ndown")).kind == "seventeen"
    assert first_fitting(rules, Facts(exit=18, log="link down")).kind == "exit"
    assert [rule.row() for rule in rules[:2]] == [{**rows[0], "exit": 17}, rows[1]]


@pytest.mark.parametrize(("wanted", "fits"), [("any", True), ("OutOfMemoryError", True), ("a.b.OutOfMemoryError", True),
                                              ("torch.OutOfMemoryError", True), ("MemoryError", False)])  # fmt: skip
def test_types_of_exceptions(wanted: str, fits: bool) -> None:
    assert FaultRule("x", "restart", exception=wanted).fits(failed("torch.OutOfMemoryError: no")) == fits
    assert not FaultRule("x", "restart", exception=wanted).fits(Facts(exit=1))


# --- what is refused ----------------------------------------------------------------------------------------------

GOOD = {"log": "link down", "class": "network", "action": "wait"}


@pytest.mark.parametrize(
    ("raw", "at", "allowed"),
    [
        ({}, "", None),
        (["x"], "[0]", "it must be a mapping such as"),
        ([GOOD, {**GOOD, "logs": "x"}], "[1].logs", "it is no key of a rule; did you mean `log`?"),
        ([{**GOOD, 3: "x"}], "[0].3", "the keys are exit, signal, exception"),
        ([{"log": "x", "class": "network"}], "[0]", "it must have a `action`"),
        ([{"class": "network", "action": "wait"}], "[0]", "it must say where to look: one of exit, signal"),
        ([{**GOOD, "action": "stop"}], "[0].action", "it must be restart, wait or give-up"),
        ([{**GOOD, "class": "Net work"}], "[0].class", "it must be one word of small letters"),
        ([{**GOOD, "exit": "0"}], "[0].exit", "it must be an exit code from 1 to 255"),
        ([{**GOOD, "exit": True}], "[0].exit", "it must be an exit code from 1 to 255"),
        ([{**GOOD, "signal": "KILL"}], "[0].signal", "it must be the name of a signal such as SIGKILL"),
        ([{**GOOD, "exception": "Value Error"}], "[0].exception", "it must be the type of an exception"),
        ([{**GOOD, "how": "odd"}], "[0].class", "`how` and `class` must be the same"),
        ([{**GOOD, "class": "hang"}], "[0].class", "`how` and `class` must be the same"),
        ([{**GOOD, "how": "hang"}], "[0].class", "`how` and `class` must be the same"),
        ([{**GOOD, "before_first_step": "no"}], "[0].before_first_step", "it must be true, or be left out"),
        ([{**GOOD, "meaning": "two\nlines"}], "[0].meaning", "it must be text on one line"),
        ([{**GOOD, "log": ["x"]}], "[0].log", "it must be text on one line"),
        ([{**GOOD, "log": "(x"}], "[0].log", "it is no regular expression: missing )"),
        ([{**GOOD, "log": "x*"}], "[0].log", "it fits an empty line, and so everything"),
        ([{**GOOD, "log": "x" * 501}], "[0].log", "a pattern can have 500 characters at most"),
        ([{**GOOD, "log": "(a+)+$"}], "[0].log", "a group that is repeated can hold neither"),
        ([{**GOOD, "error": "x(?:(a|aa)b)*$"}], "[0].error", "a group that is repeated can hold neither"),
        ([{**GOOD, "kernel": "(?P<n>[ab]{1,})+c"}], "[0].kernel", "a group that is repeated can hold neither"),
    ],
)
def test_refused_with_its_place(raw: object, at: str, allowed: str | None) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_rules(raw)
    assert refused.value.at == at
    assert refused.value.allowed is None if allowed is None else allowed in str(refused.value.allowed)


@pytest.mark.parametrize("pattern", ["(a|b)c+", r"\(x+\)+", "[(+)]+z", "(?:ab)+c", "(?i)x.*y"])
def test_harmless_patterns_are_allowed(pattern: str) -> None:
    assert parse_rules([{**GOOD, "log": pattern}])[0].log == pattern


def test_long_lines_and_logs_cost_little() -> None:
    """Lines are cut: without that this takes hours."""
    rule = parse_rules([{**GOOD, "log": "a.*a.*b"}])[0]
    assert not rule.fits(Facts(exit=1, log="a" * (256 << 10)))


# --- where they lie ---------------------------------------------------------------------------------------------------


def test_the_file_is_plain_yaml_and_every_row_comes_back() -> None:
    rows = yaml.safe_load((ROOT / "configs" / "fault_rules.yaml").read_text())
    assert [rule.row() for rule in RULES] == rows
