"""Hosts that ssh reaches: an sshd for each, on a port of the loopback, with keys and configuration of the test."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.system.processes import children
from tests.support.agents import free_port
from tests.support.waiting import wait_for

_NEEDED = ("ssh", "ssh-keygen", "sshd")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


class SshHosts:
    """Some host names that all lead to this machine; only `command` reaches them."""

    def __init__(self, home: Path, names: tuple[str, ...], tag: str) -> None:
        """Make keys and configuration, and boot all hosts.

        Args:
            home: an existing directory for files.
            names: the host names.
            tag: NAME=VALUE in the environment of all processes on the hosts.
        """
        self._home = home
        self._tag = tag
        self._ports = {name: free_port() for name in names}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        make_keys(home)
        self._write_client("user_key")
        for name in names:
            self.boot(name)

    @property
    def command(self) -> str:
        """The value for `--ssh`."""
        return f"ssh -F {self._home / 'ssh_config'}"

    def boot(self, name: str) -> None:
        """Start the sshd of a host, and wait until it listens."""
        port = self._ports[name]
        config = self._home / f"sshd_{name}"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {self._home / 'host_key'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self._home / 'authorized_keys'}\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nSetEnv {self._tag}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd separates its privileges
        with (self._home / f"sshd_{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [find("sshd"), "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(lambda: _listens(port), f"the sshd of {name}")

    def shut(self, name: str) -> None:
        """Refuse new connections to a host; existing connections go on."""
        sshd = self._running.pop(name)
        sshd.terminate()
        sshd.wait()

    def cut(self, name: str) -> list[int]:
        """Kill the existing connections to a host; return the pids of their sshds."""
        sessions = children(self._running[name].pid)
        for pid in sessions:
            os.kill(pid, signal.SIGKILL)
        return sessions

    def use_wrong_key(self) -> None:
        """Give the client a key that no host knows."""
        self._write_client("strange_key")

    def _write_client(self, key: str) -> None:
        hosts = "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in self._ports.items())
        (self._home / "ssh_config").write_text(
            f"{hosts}Host *\n  User {getpass.getuser()}\n  IdentityFile {self._home / key}\n  IdentitiesOnly yes\n"
            "  IdentityAgent none\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile {self._home / 'known_hosts'}\n  LogLevel ERROR\n"
        )

    def close(self) -> None:
        """Shut all hosts, and cut their connections."""
        for name in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                self.cut(name)
            self.shut(name)


def skip_without_ssh() -> None:
    """Skip the test where a program of ssh is missing."""
    missing = [name for name in _NEEDED if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here (Debian: openssh-client, openssh-server)")


def made(home: Path, names: tuple[str, ...], tag: str) -> Iterator[SshHosts]:
    """Yield hosts with these names; skips the test without ssh or sshd."""
    skip_without_ssh()
    if os.getuid() != 0 and not Path("/run/sshd").is_dir():
        pytest.skip("sshd wants /run/sshd, which only root may make: run as root, or make it once")
    home.mkdir()
    hosts = SshHosts(home, names, tag)
    try:
        yield hosts
    finally:
        hosts.close()


def make_keys(home: Path) -> None:
    """Make a key of hosts, a key that hosts know, and a strange one."""
    for key in ("host_key", "user_key", "strange_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / key)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (home / "authorized_keys").write_text((home / "user_key.pub").read_text())


def find(program: str) -> str:
    """Return the absolute path of a program; without it sshd refuses to start."""
    found = shutil.which(program, path=PATH)
    assert found is not None
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
