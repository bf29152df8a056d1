"""The manifest of `kvasir up` also works in a cluster, and the service keeps serving.

Kvasir is installed as users install it. Each test has a namespace that accepts only restricted pods.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import openai
import pytest

from e2e.in_cluster import Namespace, Object, idle_pod, is_ready
from e2e.installed import DEMO, image_of_frontends, schedulable
from e2e.service.ask import ask


@pytest.fixture
def demo(restricted: Namespace) -> Namespace:
    """The namespace in which all ranks of the demo service serve."""
    restricted.apply(DEMO.read_text())
    restricted.wait_for_ranks("demo", 2)
    return restricted


def test_clients_in_a_pod_and_outside_get_kvasir_ups_answer(
    expected: str, restricted: Namespace, tmp_path: Path
) -> None:
    restricted.apply(DEMO.read_text())
    restricted.apply(idle_pod("client", image_of_frontends(restricted.cluster)))
    with_openai(restricted, "client", tmp_path)
    restricted.wait("kvs/demo", "condition=Ready", 120)
    assert "CPU kernels: " in restricted.kubectl("logs", "statefulset/demo-engine"), "the image lacks them"
    asked = ("python", "/tmp/client/ask.py", "http://demo")
    assert restricted.kubectl("exec", "client", "--", *asked).strip() == expected
    with restricted.forwarded("service/demo", 80) as url:
        assert ask(url) == expected


def test_applied_again_nothing_changes(demo: Namespace) -> None:
    before = versions(demo.children("demo"))
    assert demo.apply(DEMO.read_text()).strip().endswith("unchanged")
    for _ in range(2):  # a service is reconciled by one worker at a time: the second pass begins after the first
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


def test_drift_is_repaired(demo: Namespace) -> None:
    demo.kubectl("patch", "service/demo", "--type=json", "--patch", json.dumps([DRIFT]))
    demo.wait("service/demo", "jsonpath={.spec.ports[0].targetPort}=http")
    path = "{.spec.template.spec.containers[0].image}"
    for workload, container in (("deployment/demo-frontend", "frontend"), ("statefulset/demo-engine", "engine")):
        image = demo.kubectl("get", workload, "--output", f"jsonpath={path}")
        demo.kubectl("set", "image", workload, f"{container}=somebody-elses")
        demo.wait(workload, f"jsonpath={path}={image}")
    demo.kubectl("rollout", "status", "deployment/demo-frontend", "--timeout=120s")
    demo.wait_for_ranks("demo", 2)


def test_the_number_of_frontends_belongs_to_kubectl_scale(demo: Namespace) -> None:
    """No `frontend.replicas` is given, so a HorizontalPodAutoscaler or a user may set the number."""
    demo.kubectl("scale", "deployment/demo-frontend", "--replicas=2")
    demo.kubectl("rollout", "status", "deployment/demo-frontend", "--timeout=120s")
    demo.kubectl("patch", "service/demo", "--type=json", "--patch", json.dumps([DRIFT]))
    demo.wait("service/demo", "jsonpath={.spec.ports[0].targetPort}=http")
    assert demo.get("deployment/demo-frontend")["spec"]["replicas"] == 2
    demo.kubectl("scale", "deployment/demo-frontend", "--replicas=1")


def test_a_deleted_link_secret_is_replaced_and_all_pods_use_it(demo: Namespace, expected: str) -> None:
    """The keys are replaced even if another pod on the node uses the old Secret, which a kubelet may have cached.

    The operator may not watch Secrets. It checks this one while a pod waits to start, and otherwise every four
    minutes.
    """
    (old,) = {link_secret_of(pod) for pod in pods(demo)}
    for node in schedulable(demo.cluster):
        user = idle_pod(node, image_of_frontends(demo.cluster))
        user["spec"] |= {"nodeName": node}
        user["spec"]["volumes"].append({"name": "link", "secret": {"secretName": old}})
        demo.apply(user)
        demo.wait(f"pod/{node}", "condition=Ready")
    demo.kubectl("delete", "secret", old)
    demo.kubectl("delete", "pod", "demo-engine-0")

    def renewed(seen: Mapping[str, Object]) -> bool:
        ours = [pod for pod in seen.values() if pod["metadata"].get("labels", {}).get(INSTANCE) == "demo"]
        secrets = {link_secret_of(pod) for pod in ours}
        return len(ours) == 3 and len(secrets) == 1 and old not in secrets and all(map(is_ready, ours))

    demo.until("pods", renewed, 300)
    demo.wait_for_ranks("demo", 2)
    with demo.forwarded("service/demo", 80) as url:
        assert ask(url) == expected


def test_kubectl_scale_changes_the_number_of_ranks(demo: Namespace) -> None:
    for count in (1, 3, 2):
        demo.kubectl("scale", "kvs/demo", f"--replicas={count}")
        demo.wait_for_ranks("demo", count)
        demo.wait("kvs/demo", "condition=Ready")


def test_a_deleted_service_leaves_nothing(demo: Namespace) -> None:
    made = contents(demo)
    link = f"secret/{link_secret_of(pods(demo)[0])}"
    assert {"pod/demo-engine-0", "pod/demo-engine-1", link} <= made
    demo.kubectl("delete", "kvs/demo")
    for name in sorted(made):
        demo.wait(name, "delete")
    assert contents(demo) == set()


CONTENTS = (
    "serviceaccounts,secrets,services,endpoints,endpointslices,deployments,replicasets,statefulsets,"
    "controllerrevisions,pods,persistentvolumeclaims"
)
INSTANCE = "app.kubernetes.io/instance"
DRIFT = {"op": "replace", "path": "/spec/ports/0/targetPort", "value": 1}


def with_openai(namespace: Namespace, pod: str, folder: Path) -> None:
    """Copy ask.py, and OpenAI's client for the pod's Python, to /tmp/client of a running pod."""
    namespace.wait(f"pod/{pod}", "condition=Ready")
    version = namespace.kubectl(
        "exec", pod, "--", "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
    )
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    options = ("--target", str(folder), "--python-version", version.strip(), "--only-binary=:all:")
    subprocess.run([*pip, *options, f"openai=={openai.__version__}"], check=True)
    shutil.copy(Path(__file__).with_name("ask.py"), folder)
    namespace.kubectl("cp", str(folder), f"{pod}:/tmp/client")


def contents(namespace: Namespace) -> set[str]:
    """Return everything in the namespace except the objects that every namespace has."""
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


def link_secret_of(pod: Object) -> str:
    """Return the name of the Secret with the pod's link keys."""
    return str(pod["metadata"]["annotations"]["serving.kvasir.dev/link-keys"])
