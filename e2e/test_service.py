"""The same manifest in a cluster: what `kvasir up` serves is served there, and stays so.

Kvasir is installed as a user installs it; each test has a namespace that takes only restricted pods.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from e2e.in_cluster import Namespace, Object
from e2e.installed import NAMESPACE, OPERATOR
from e2e.kind.cluster import Cluster
from service.running import running

DEMO = Path(__file__).parents[1] / "manifests" / "examples" / "demo.yaml"
QUESTION = "What is Kvasir?"
CHAT = ["chat", "http://demo", "--temperature", "0", "--message", QUESTION]


@pytest.fixture(scope="session")
def expected() -> str:
    """What `kvasir up` answers on this machine."""
    with running("up", str(DEMO), "--port", "0") as service:
        return ask(service.url)


@pytest.fixture
def demo(restricted: Namespace) -> Namespace:
    """The namespace in which the demo service serves, all ranks of it."""
    restricted.apply(DEMO.read_text())
    restricted.wait_for_ranks("demo", 2)
    return restricted


@pytest.fixture(scope="session")
def system(installed: Cluster) -> Namespace:
    return Namespace(installed, NAMESPACE)


def test_the_demo_answers_in_the_cluster_and_outside_as_kvasir_up_does(
    expected: str, restricted: Namespace, system: Namespace
) -> None:
    restricted.apply(DEMO.read_text())
    restricted.wait("kvs/demo", "condition=Ready", 120)
    with restricted.forwarded("service/demo", 80) as url:
        assert ask(url) == expected
    restricted.apply(client_pod(image_of_frontends(system)))
    restricted.wait("pod/client", "jsonpath={.status.phase}=Succeeded")
    assert restricted.kubectl("logs", "client").strip() == expected


def test_applied_again_nothing_changes(demo: Namespace) -> None:
    before = versions(demo.children("demo"))
    assert demo.apply(DEMO.read_text()).strip().endswith("unchanged")
    for _ in range(2):  # a service is reconciled once at a time: the second begins when the first is through
        delete_and_see_it_back(demo, "service/demo-engine")
    del before["Service/demo-engine"]
    after = versions(demo.children("demo"))
    assert {name: after[name] for name in before} == before
    demo.wait_for_ranks("demo", 2)


def test_deleted_services_and_workloads_come_back(demo: Namespace, expected: str) -> None:
    delete_and_see_it_back(demo, "service/demo")
    delete_and_see_it_back(demo, "statefulset/demo-engine")
    uid = demo.get("statefulset/demo-engine")["metadata"]["uid"]

    def replaced(seen: Mapping[str, Object]) -> bool:
        owners = {name: pod["metadata"]["ownerReferences"][0]["uid"] for name, pod in seen.items()}
        return all(
            owners.get(f"demo-engine-{rank}") == uid and is_ready(seen[f"demo-engine-{rank}"]) for rank in (0, 1)
        )

    demo.until("pods", replaced)
    demo.wait_for_ranks("demo", 2)
    with demo.forwarded("service/demo", 80) as url:
        assert ask(url) == expected


def test_what_drifts_is_repaired(demo: Namespace) -> None:
    demo.kubectl("scale", "deployment/demo-frontend", "--replicas=2")
    demo.wait("deployment/demo-frontend", "jsonpath={.spec.replicas}=1")
    demo.kubectl("patch", "service/demo", "--type=json", "--patch", json.dumps([DRIFT]))
    demo.wait("service/demo", "jsonpath={.spec.ports[0].targetPort}=http")
    path = "{.spec.template.spec.containers[0].image}"
    image = demo.kubectl("get", "statefulset/demo-engine", "--output", f"jsonpath={path}")
    demo.kubectl("set", "image", "statefulset/demo-engine", "engine=somebody-elses")
    demo.wait("statefulset/demo-engine", f"jsonpath={path}={image}")
    demo.wait_for_ranks("demo", 2)


def test_a_deleted_secret_comes_back_with_new_keys_and_every_pod_takes_them(demo: Namespace, expected: str) -> None:
    old = {key_of(pod) for pod in pods(demo)}
    delete_and_see_it_back(demo, "secret/demo-link")

    def renewed(seen: Mapping[str, Object]) -> bool:
        keys = {key_of(pod) for pod in seen.values() if pod["metadata"]["labels"].get(INSTANCE) == "demo"}
        return len(seen) == 3 and len(keys) == 1 and not keys & old and all(map(is_ready, seen.values()))

    demo.until("pods", renewed, 120)
    demo.wait_for_ranks("demo", 2)
    with demo.forwarded("service/demo", 80) as url:
        assert ask(url) == expected


def test_kubectl_scale_changes_the_number_of_ranks(demo: Namespace) -> None:
    for count in (1, 3, 2):
        demo.kubectl("scale", "kvs/demo", f"--replicas={count}")
        demo.wait_for_ranks("demo", count)
        demo.wait("kvs/demo", "condition=Ready")


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"image": "localhost:1/kvasir-engine:none"},
            "ImagePullFailed",
            "localhost:1/kvasir-engine:none cannot be pulled",
            id="an image that does not exist",
        ),
        pytest.param(
            {"model": {"source": "file:///models/none"}},
            "ModelNotFound",
            "/models/none",
            id="a model that does not exist",
        ),
        pytest.param(
            {"engine": {"resourceName": "nvidia.com/gpu"}},
            "InsufficientGPU",
            "no node has a free nvidia.com/gpu",
            id="more GPUs than there are",
        ),
    ],
)
def test_within_a_minute_the_status_names(
    restricted: Namespace, change: dict[str, Any], reason: str, words: str
) -> None:
    restricted.apply(service(**change))
    restricted.wait("kvs/wrong", f'jsonpath={{.status.conditions[?(@.type=="Ready")].reason}}={reason}')
    conditions = {entry["type"]: entry for entry in restricted.get("kvs/wrong")["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert words in conditions["Ready"]["message"]


def test_a_deleted_service_leaves_nothing(demo: Namespace) -> None:
    made = contents(demo)
    assert {"pod/demo-engine-0", "pod/demo-engine-1", "secret/demo-link"} <= made
    demo.kubectl("delete", "kvs/demo")
    for name in sorted(made):
        demo.wait(name, "delete")
    assert contents(demo) == set()


def test_when_the_leading_operator_is_deleted_another_one_goes_on(demo: Namespace, system: Namespace) -> None:
    leader = system.get("lease/kvasir-operator")["spec"]["holderIdentity"]
    demo.kubectl("scale", "kvs/demo", "--replicas=3")
    system.kubectl("delete", f"pod/{leader}", "--wait=false")

    def somebody_else(leases: Mapping[str, Object]) -> bool:
        holder = leases["kvasir-operator"]["spec"].get("holderIdentity")
        return bool(holder) and holder != leader

    system.until("lease/kvasir-operator", somebody_else, 30)
    demo.wait_for_ranks("demo", 3)
    system.kubectl("rollout", "status", OPERATOR, "--timeout=60s")


CONTENTS = (
    "serviceaccounts,secrets,services,endpoints,endpointslices,deployments,replicasets,statefulsets,"
    "controllerrevisions,pods,persistentvolumeclaims"
)
INSTANCE = "app.kubernetes.io/instance"
DRIFT = {"op": "replace", "path": "/spec/ports/0/targetPort", "value": 1}


def ask(url: str) -> str:
    """The greedy answer, streamed to a client of OpenAI's."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def service(**spec: Any) -> Object:
    """A service of one rank that differs from the demo by these fields."""
    engine = {"dataParallelSize": 1, "resourceName": "", "kvCache": {"memory": "64Mi"}, **spec.pop("engine", {})}
    return {
        "apiVersion": "serving.kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "wrong"},
        "spec": {"model": {"source": "demo://"}, "engine": engine, **spec},
    }


def client_pod(image: str) -> Object:
    """It asks once, by the Service's name, and ends."""
    limits = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "client", "image": image, "args": CHAT, "securityContext": limits}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec}


def image_of_frontends(system: Namespace) -> str:
    """As the operator was told; it has Kvasir's command line."""
    (container,) = system.get(OPERATOR)["spec"]["template"]["spec"]["containers"]
    return next(str(entry["value"]) for entry in container["env"] if entry["name"] == "KVASIR_FRONTEND_IMAGE")


def contents(namespace: Namespace) -> set[str]:
    """All that is in it but what every namespace has."""
    listed = namespace.kubectl("get", CONTENTS, "--output", "name").split()
    return set(listed) - {"serviceaccount/default"}


def delete_and_see_it_back(namespace: Namespace, name: str) -> None:
    namespace.kubectl("delete", name)
    namespace.wait(name, "create", 30)


def versions(objects: Mapping[str, Object]) -> dict[str, str]:
    return {name: item["metadata"]["resourceVersion"] for name, item in objects.items()}


def pods(namespace: Namespace) -> list[Object]:
    items: list[Object] = namespace.get("pods", "--selector", f"{INSTANCE}=demo")["items"]
    return items


def key_of(pod: Object) -> str:
    """Which link keys it was made for."""
    return str(pod["metadata"]["annotations"]["serving.kvasir.dev/link-keys"])


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any((entry["type"], entry["status"]) == ("Ready", "True") for entry in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
