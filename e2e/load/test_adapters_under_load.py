"""A LoRA adapter is added to a service under load: no request fails, and no pod is replaced."""

import base64
import json
from pathlib import Path

import httpx
import yaml

from e2e.in_cluster import Object, restricted_namespace
from e2e.installed import DEMO
from e2e.kind.cluster import Cluster
from e2e.load.test_changes_under_load import Served, pods
from e2e.load.under_load import load
from runtime.hub.adapters.adapter_files import Shapes, write_adapter

READ_WITHIN = 180  # seconds; a kubelet updates a mounted ConfigMap about once a minute
SHAPES: Shapes = {f"model.layers.{layer}.mlp.down_proj": (384, 256) for layer in range(3)}  # of the demo model
VOLUMES = {
    "volumes": [{"name": "sql", "configMap": {"name": "sql"}}],
    "volumeMounts": [{"name": "sql", "mountPath": "/adapters/sql"}],
}


def files_as_config_map(folder: Path) -> Object:
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in folder.iterdir()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sql"}, "binaryData": data}


def uids(service: Served) -> set[str]:
    found = {**pods(service, "engine"), **pods(service, "frontend")}
    return {pod["metadata"]["uid"] for pod in found.values()}


def test_adapter_added_under_load_replaces_no_pod(installed: Cluster, tmp_path: Path) -> None:
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["model"]["loraAdapters"] = []
    for component in ("engine", "frontend"):
        manifest["spec"].setdefault(component, {})["pod"] = VOLUMES
    with restricted_namespace(installed) as namespace:
        namespace.apply(files_as_config_map(write_adapter(tmp_path, SHAPES)))
        namespace.apply(manifest)
        namespace.wait_for_ranks("demo", 2)
        service = Served(namespace, 2)
        before = uids(service)
        adapters = [{"name": "sql", "source": "file:///adapters/sql"}]
        with load(namespace, "demo"):
            patch = json.dumps({"spec": {"model": {"loraAdapters": adapters}}})
            namespace.kubectl("patch", "kvs/demo", "--type=merge", "--patch", patch)
            condition = "jsonpath={.status.adapters.ready}=1"
            namespace.kubectl("wait", f"--for={condition}", "kvs/demo", f"--timeout={READ_WITHIN}s")
        with namespace.forwarded("service/demo", 80) as url, httpx.Client(base_url=url, timeout=60) as http:
            body = {"prompt": "Kvasir is", "max_tokens": 16, "temperature": 0}
            texts = {}
            for model in ("demo", "sql"):
                answer = http.post("/v1/completions", json={**body, "model": model})
                assert answer.status_code == 200, answer.text
                texts[model] = answer.json()["choices"][0]["text"]
        assert texts["sql"] != texts["demo"]
        assert uids(service) == before
