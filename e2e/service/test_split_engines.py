"""Engines with several workers: in one pod, and in two pods over gloo. They give the answer of a single process.

The weights are float32: sums of several workers differ in their last bits, which matters more in bfloat16.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from e2e.in_cluster import Namespace, Object, is_ready, restricted_namespace
from e2e.installed import DEMO
from e2e.kind.cluster import Cluster
from e2e.service.ask import ask

NOTICE = "the pods of an engine exchange tensors without encryption"


@pytest.fixture(scope="module")
def split(installed: Cluster) -> Iterator[Namespace]:
    """The namespace in which the demo service serves, with one engine of two pods."""
    with restricted_namespace(installed) as namespace:
        namespace.apply(demo(tensorParallelSize=2, nodes=2))
        namespace.wait_for_ranks("demo", 1)
        yield namespace


@pytest.fixture(scope="module")
def whole_answer(installed: Cluster) -> str:
    """The answer of an engine with one process."""
    with restricted_namespace(installed) as namespace:
        namespace.apply(demo())
        return answer_of(namespace)


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("tensorParallelSize", "--tensor-parallel-size"),
        ("pipelineParallelSize", "--pipeline-parallel-size"),
    ],
)
def test_two_workers_give_the_answer_of_one(
    restricted: Namespace, whole_answer: str, field: str, option: str
) -> None:
    restricted.apply(demo())
    restricted.wait_for_ranks("demo", 1)
    patch = {"spec": {"engine": {field: 2}}}
    restricted.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps(patch))
    assert answer_of(restricted) == whole_answer
    container = restricted.get("pod/demo-engine-0")["spec"]["containers"][0]
    assert option in container["args"]


def test_an_engine_of_two_pods_answers_and_warns(split: Namespace, whole_answer: str) -> None:
    assert answer_of(split) == whole_answer
    service = split.get("kvs/demo")
    (ready,) = (entry for entry in service["status"]["conditions"] if entry["type"] == "EnginesReady")
    assert (ready["status"], ready["message"].endswith(NOTICE)) == ("True", True)
    assert [rank["pod"] for rank in service["status"]["engines"]["ranks"]] == ["demo-engine-0"]
    assert service["status"]["replicas"] == 1
    assert {"demo-engine-0", "demo-engine-1"} <= {pod["metadata"]["name"] for pod in split.get("pods")["items"]}


@pytest.mark.parametrize("pod", ["demo-engine-0", "demo-engine-1"])
def test_a_rank_serves_again_after_a_pod_was_deleted(split: Namespace, whole_answer: str, pod: str) -> None:
    old = split.get(f"pod/{pod}")["metadata"]["uid"]
    split.kubectl("delete", "pod", pod, "--wait=false")

    def joined(seen: Mapping[str, Object]) -> bool:
        engines = {name: found for name, found in seen.items() if name.startswith("demo-engine-")}
        is_new = pod in engines and engines[pod]["metadata"]["uid"] != old
        return is_new and len(engines) == 2 and all(map(is_ready, engines.values()))

    split.until("pods", joined, 300)
    assert answer_of(split) == whole_answer


def demo(**engine: Any) -> Object:
    """Return the demo service with one engine in float32."""
    manifest: Object = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["engine"] |= {"dataParallelSize": 1, "dtype": "float32", **engine}
    return manifest


def answer_of(namespace: Namespace) -> str:
    namespace.wait_for_ranks("demo", 1, 300)
    with namespace.forwarded("service/demo", 80) as url:
        return ask(url)
