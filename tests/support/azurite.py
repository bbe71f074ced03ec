"""Azure Blob Storage on this machine: Azurite, Microsoft's own emulator, as npm has it."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.agents import free_port
from tests.support.waiting import wait_for

_HERE = "127.0.0.1"
_INSTALLED = Path(__file__).parents[2] / "build/azurite/node_modules/.bin"
AZURITE = shutil.which("azurite-blob", path=str(_INSTALLED)) or shutil.which("azurite-blob")
needs_azurite = pytest.mark.skipif(
    AZURITE is None or find_spec("obstore") is None,
    reason="there is no Azurite here, or no obstore (make azurite extras: npm install azurite, pip install obstore)",
)
ACCOUNT = "ours"
KEY = base64.b64encode(b"a-key-for-the-tests").decode()
CONTAINER = "checkpoints"


def environment(port: int) -> dict[str, str]:
    """The variables by which a client finds the server."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://{_HERE}:{port}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }


@contextlib.contextmanager
def azurite(home: Path) -> Iterator[int]:
    """The port of a server that has an empty container, and ends with the block."""
    home.mkdir()
    port = free_port()
    assert AZURITE is not None
    command = [AZURITE, "--blobHost", _HERE, "--blobPort", str(port), "--location", str(home), "--silent"]
    env = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--disableTelemetry"], env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: _has_container(port), "the container", 60.0)
        yield port
    finally:
        process.kill()
        process.wait()


def _has_container(port: int) -> bool:
    """Create the container; False while the server does not answer."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + signed + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    connection = http.client.HTTPConnection(_HERE, port, timeout=5)
    try:
        connection.request(
            "PUT",
            f"/{ACCOUNT}/{CONTAINER}?restype=container",
            headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"},
        )
        return connection.getresponse().status in (201, 409)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
