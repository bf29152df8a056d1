"""A registry with a password on this machine: the program `registry` of distribution, built from its Go module."""

import base64
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.kind.build import binaries

_USER, _PASSWORD = "puller", "release-test"
_ENTRY = f"{_USER}:$2b$04$kvasirkvasirkvasirkvauO1cKS5PGta2BwX.ZsqUFrqS6mlWPMBi\n"
"""The line of htpasswd for this user. The registry takes only bcrypt."""
_ANSWERS_WITHIN = 30.0


@dataclass(frozen=True)
class Registry:
    place: str
    """Its host and port."""

    @property
    def credentials(self) -> str:
        """The content of a docker config.json, and of a Secret of type kubernetes.io/dockerconfigjson."""
        word = base64.b64encode(f"{_USER}:{_PASSWORD}".encode()).decode()
        return json.dumps({"auths": {self.place: {"auth": word}}})


@contextlib.contextmanager
def registry(address: str, folder: Path) -> Iterator[Registry]:
    """Run a registry without TLS on a free port of this address. Its images are below `folder`."""
    with socket.create_server((address, 0)) as free:
        port = free.getsockname()[1]
    (folder / "htpasswd").write_text(_ENTRY)
    settings = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"{address}:{port}"},
        "auth": {"htpasswd": {"realm": "kvasir", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    program = binaries.ready(binaries.REGISTRY)["registry"]
    command = (program, "serve", folder / "config.yml")
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait_until_it_answers(process, address, port, folder / "log")
            yield Registry(f"{address}:{port}")
        finally:
            process.terminate()


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + _ANSWERS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the registry does not respond: {log.read_text()}")
