"""A file system in user space that can be made to stand still: sshfs, whose server is a process of the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def why_not() -> str:
    """Return why no such file system can be mounted here; empty if one can."""
    if os.getuid():
        return "only root may mount for certain: run as root"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse (modprobe fuse; in a container: --device /dev/fuse)"
    if not shutil.which("sshfs") or not any(map(os.path.exists, _SERVERS)):
        return "sshfs or OpenSSH's sftp-server is not installed (Debian: sshfs, openssh-sftp-server)"
    return ""


class SlowDisk:
    """A mounted file system whose server can be stopped."""

    def __init__(self, place: Path, server: subprocess.Popen[bytes]) -> None:
        self.place = place
        self._server = server

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Leave all requests unanswered for the time of the context, by stopping the server."""
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)


@contextmanager
def mounted(home: Path) -> Iterator[SlowDisk]:
    """Mount a file system at `<home>/mounted`, whose files lie in `<home>/behind`; the kernel caches nothing."""
    place = home / "mounted"
    behind = home / "behind"
    place.mkdir()
    behind.mkdir()
    ours, theirs = socket.socketpair()
    server_path = next(path for path in _SERVERS if Path(path).exists())
    server = subprocess.Popen([server_path], stdin=theirs, stdout=theirs)
    options = "passive,sshfs_sync,dcache_timeout=1,attr_timeout=0,entry_timeout=0,allow_other"
    daemon = subprocess.Popen(["sshfs", "-f", "-o", options, f"here:{behind}", str(place)], stdin=ours, stdout=ours)
    try:
        wait_for(lambda: os.path.ismount(place), "the mount")
        yield SlowDisk(place, server)
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", str(place)], check=False)
        ours.close()
        theirs.close()
        server.kill()
        server.wait()
        daemon.kill()
        daemon.wait()
