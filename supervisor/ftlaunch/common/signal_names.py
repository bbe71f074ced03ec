"""The names of Linux's signals as a table, so that modules without system calls can use them. Pure."""

from __future__ import annotations

SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


def signal_name(signum: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9, or `signal 34` for a signal without a name."""
    return SIGNALS.get(signum, f"signal {signum}")
