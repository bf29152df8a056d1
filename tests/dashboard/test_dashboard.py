"""vLLM's published Grafana dashboard and our own show data in every panel; sums over all targets count all once.

`make test-dashboard`. vllm_panels.json has the panels and their queries, as published.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from dashboard.prometheus import Prometheus, program, scraping
from debian import NoProgram
from kvasir.local.run import TARGETS
from service.running import Service, running
from tools import grafana_dashboard

PANELS = json.loads((Path(__file__).parent / "vllm_panels.json").read_text())["panels"]
MODEL = "demo"
RATE_INTERVAL = "15s"
"""Grafana's value of $__rate_interval: some scrapes."""
PATIENCE = 120.0
"""Seconds until every panel must have data."""

MANIFEST = """\
apiVersion: serving.kvasir.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec:
  model: {source: "demo://", servedNames: [demo]}
  frontend: {replicas: 2}
  engine: {dataParallelSize: 2, resourceName: "", kvCache: {memory: 64Mi}}
"""


class Traffic:
    """Clients that send requests until they are stopped; counts the tokens of all answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()
        self.generated = 0
        self.prompted = 0
        self._lock = threading.Lock()

    def _client(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stopped.is_set():
                body = {"model": MODEL, "prompt": "What is a pod?", "max_tokens": 24, "ignore_eos": True, "n": 2}
                usage = client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
                with self._lock:
                    self.generated += usage["completion_tokens"]
                    self.prompted += 2 * usage["prompt_tokens"]  # each choice is a request of its own

    @contextmanager
    def flowing(self, clients: int = 2) -> Iterator[None]:
        with ThreadPoolExecutor(clients) as pool:
            futures = [pool.submit(self._client) for _ in range(clients)]
            try:
                yield
            finally:
                self._stopped.set()
        for future in futures:
            future.result()


def own_panels() -> list[dict[str, Any]]:
    """Return the panels that need no operator."""
    panels = [panel for row in grafana_dashboard.ROWS.values() for panel in row if not panel.needs_operator]
    return [{"title": panel.title, "queries": [*panel.queries.values()]} for panel in panels]


def without_data(prometheus: Prometheus, panels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the queries that have no value now, with the titles of their panels."""
    missing = []
    values = {"$model_name": MODEL, "$__rate_interval": RATE_INTERVAL, "$namespace": ".*", "$service": ".*"}
    for panel in panels:
        for text in panel["queries"]:
            for name, value in values.items():
                text = text.replace(name, value)
            if not prometheus.query(text):
                missing.append(f"{panel['title']}: {text}")
    return missing


def check(
    service: Service, discovery: str, engines: int, frontends: int, folder: Path, *panels: Mapping[str, Any]
) -> None:
    traffic = Traffic(service.url)
    with scraping(discovery, folder) as prometheus:
        deadline = time.monotonic() + PATIENCE
        with traffic.flowing():
            while missing := without_data(prometheus, [*PANELS, *panels]):
                assert time.monotonic() < deadline, "no data:\n" + "\n".join(missing)
                time.sleep(0.5)  # scrapes come by the clock
        for name in ("num_requests_running", 'num_requests_waiting{engine!=""}', "kv_cache_usage_perc"):
            assert prometheus.query(f"count(vllm:{name})") == [engines], f"vllm:{name}: one series for each engine"
        queues = prometheus.query('count(vllm:num_requests_waiting{engine=""})')
        assert queues == [frontends], "vllm:num_requests_waiting: one series for the queue of each frontend"
        expected = {"generation_tokens": float(traffic.generated), "prompt_tokens": float(traffic.prompted)}
        while (sums := totals(prometheus)) != expected:
            assert time.monotonic() < deadline, f"{sums} in Prometheus, and clients counted {expected}"
            time.sleep(0.5)
        assert all(target["health"] == "up" for target in prometheus.targets())


def totals(prometheus: Prometheus) -> dict[str, float]:
    return {
        name: sum(prometheus.query(f"sum(vllm:{name}_total)")) for name in ("generation_tokens", "prompt_tokens")
    }


@pytest.fixture(scope="module", autouse=True)
def _prometheus_is_here() -> None:
    """Before a service starts for nothing."""
    try:
        program()
    except NoProgram as missing:
        pytest.skip(str(missing))


def test_http_port_of_serve_has_data_for_every_panel(tmp_path: Path) -> None:
    with running("serve", "demo://", "--served-model-name", MODEL, "--port", "0", "--threads", "1") as service:
        check(service, f"static_configs: [{{targets: ['{urlsplit(service.url).netloc}']}}]", 1, 1, tmp_path)


def test_probe_ports_of_two_frontends_sum_rightly(tmp_path: Path) -> None:
    manifest = tmp_path / "demo.yaml"
    manifest.write_text(MANIFEST)
    with running("up", str(manifest), "--port", "0", env={"XDG_STATE_HOME": str(tmp_path)}) as service:
        [targets] = tmp_path.glob(f"kvasir/*/{TARGETS}")
        listed = {target for group in json.loads(targets.read_text()) for target in group["targets"]}
        assert listed == {urlsplit(part.ops).netloc for part in service.parts()}
        assert len(listed) == 4
        check(service, f"file_sd_configs: [{{files: ['{targets}']}}]", 2, 2, tmp_path, *own_panels())
    assert not targets.exists()
