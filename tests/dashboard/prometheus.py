"""A real Prometheus on loopback that scrapes a service: Debian's package, unpacked into the user's cache."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from debian import unpacked

START_SECONDS = 60.0
SCRAPE_SECONDS = 1

_CONFIG = """\
global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s}}
scrape_configs:
  - job_name: kvasir
    {discovery}
"""


class Prometheus:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def query(self, expression: str) -> list[float]:
        """Return the current values of all series of an expression, without NaN."""
        answer = self._http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if value == value]

    def targets(self) -> list[dict[str, Any]]:
        active: list[dict[str, Any]] = self._http.get("/api/v1/targets").json()["data"]["activeTargets"]
        return active

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._http.close()


def program() -> Path:
    """Return the path of Prometheus, which is fetched with apt-get if it is not installed. Raises NoProgram."""
    if installed := shutil.which("prometheus"):
        return Path(installed)
    return unpacked("prometheus") / "usr/bin/prometheus"


@contextmanager
def scraping(discovery: str, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the targets of this `static_configs` or `file_sd_configs`. It ends with the block."""
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    config.write_text(_CONFIG.format(interval=SCRAPE_SECONDS, discovery=discovery))
    address = f"127.0.0.1:{_free_port()}"
    command = [
        str(program()),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    api = Prometheus(f"http://{address}")
    try:
        deadline = time.monotonic() + START_SECONDS
        while not api.is_ready():
            assert process.poll() is None, f"Prometheus ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"Prometheus is not ready:\n{log.read_text()}"
            time.sleep(0.1)  # another process: there is no event to wait for
        yield api
    finally:
        api.close()
        process.terminate()
        process.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
