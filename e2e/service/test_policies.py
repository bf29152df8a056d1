"""The cluster enforces NetworkPolicies, so that tests of them can fail, and a service's policies take effect."""

import json

import pytest

from e2e.in_cluster import Namespace, Object, idle_pod, is_ready
from e2e.installed import DEMO, OPERATOR, image_of_frontends
from kvasir_contract.endpoints import HTTP_PORT, KV_HAND_OVER_PORT, LINK_PORT, OPS_PORT

WEB, OTHER = 8080, 8090
FRIEND = {"podSelector": {"matchLabels": {"role": "friend"}}}
SERVE = f"python -m http.server {OTHER} --directory /tmp & exec python -m http.server {WEB} --directory /tmp"
CONNECT = """
import socket, sys, time

def attempt(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return "closed"
    except TimeoutError:
        return "blocked"
    return "open"

host, port, wanted, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
deadline = time.monotonic() + seconds
while (found := attempt(host, port)) != wanted and time.monotonic() < deadline:
    time.sleep(0.1)
print(found)
"""
"""Connects until the expected result occurs, because a policy takes effect some time after it is applied."""


@pytest.fixture
def clients(restricted: Namespace) -> Namespace:
    """A namespace with two pods: the tests' policies select `friend` and do not select `foreign`."""
    make_clients(restricted)
    return restricted


@pytest.fixture
def server(clients: Namespace) -> str:
    """The address of a pod in the same namespace, which listens on WEB, named `web`, and on OTHER."""
    pod = idle_pod("server", image_of_frontends(clients.cluster))
    pod["metadata"]["labels"] = {"role": "server"}
    container = pod["spec"]["containers"][0]
    container["command"] = ["sh", "-c", SERVE]
    container["ports"] = [{"name": "web", "containerPort": WEB}]
    container["readinessProbe"] = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
    clients.apply(pod)
    clients.wait("pod/server", "condition=Ready")
    return address(clients, "server")


def test_a_policy_that_denies_is_enforced_until_another_allows(clients: Namespace, server: str) -> None:
    for pod in ("friend", "foreign"):
        assert connect(clients, pod, server, WEB, "open") == "open"
        assert connect(clients, pod, server, OTHER, "open") == "open"
    clients.apply(policy("deny", []))
    for pod in ("friend", "foreign"):
        assert connect(clients, pod, server, WEB, "blocked") == "blocked"
    clients.apply(policy("allow", [{"from": [FRIEND]}]))
    assert connect(clients, "friend", server, WEB, "open") == "open"
    assert connect(clients, "foreign", server, WEB, "blocked") == "blocked"
    clients.kubectl("delete", "networkpolicy", "deny", "allow")
    assert connect(clients, "foreign", server, WEB, "open") == "open"


def test_policies_select_pods_namespaces_addresses_and_ports(clients: Namespace, server: str) -> None:
    """Each rule accepts `friend` on WEB, and rejects `foreign` and other ports."""
    friend = {"matchExpressions": [{"key": "role", "operator": "In", "values": ["friend", "other"]}]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": clients.name}}
    block = {"cidr": "0.0.0.0/0", "except": [f"{address(clients, 'foreign')}/32"]}
    web = [{"port": "web"}]
    for rule in (
        {"from": [{"podSelector": friend}], "ports": web},
        {
            "from": [{"podSelector": friend, "namespaceSelector": here}],
            "ports": [{"port": WEB, "endPort": WEB + 5}],
        },
        {"from": [{"ipBlock": block}], "ports": [{"port": WEB, "protocol": "TCP"}]},
    ):
        clients.apply(policy("rule", [rule]))
        assert connect(clients, "friend", server, OTHER, "blocked") == "blocked", rule
        assert connect(clients, "friend", server, WEB, "open") == "open", rule
        assert connect(clients, "foreign", server, WEB, "blocked") == "blocked", rule
    elsewhere = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    clients.apply(policy("rule", [{"from": [{"namespaceSelector": elsewhere}], "ports": web}]))
    assert connect(clients, "friend", server, WEB, "blocked") == "blocked"
    clients.wait("pod/server", "condition=Ready")  # the kubelet's probes are accepted


def test_a_service_accepts_requests_and_protects_inner_ports(clients: Namespace, system: Namespace) -> None:
    """A ready service shows that engines can connect to frontends."""
    clients.apply(DEMO.read_text())
    clients.wait_for_ranks("demo", 2)
    frontend, engine = (parts(clients, component)[0] for component in ("frontend", "engine"))
    assert connect(clients, "foreign", "demo", 80, "open") == "open"
    assert connect(clients, "foreign", frontend, HTTP_PORT, "open") == "open"
    assert connect(clients, "foreign", frontend, LINK_PORT, "blocked") == "blocked"
    assert connect(clients, "foreign", frontend, OPS_PORT, "blocked") == "blocked"
    assert connect(clients, "foreign", engine, OPS_PORT, "blocked") == "blocked"
    assert connect(clients, "foreign", engine, KV_HAND_OVER_PORT, "blocked") == "blocked"
    for pod in ("demo-engine-0", "demo-engine-1"):  # one of them connects to the other one
        assert connect(clients, pod, engine, KV_HAND_OVER_PORT, "open") == "open"
    for host in (frontend, engine):
        assert connect(system, OPERATOR, host, OPS_PORT, "open") == "open"
    change(clients, {"allowMetricsFrom": [FRIEND]})
    assert connect(clients, "friend", engine, OPS_PORT, "open") == "open"
    assert connect(clients, "friend", frontend, OPS_PORT, "open") == "open"
    assert connect(clients, "friend", frontend, LINK_PORT, "blocked") == "blocked"
    change(clients, {"policy": False})
    inner = ((frontend, LINK_PORT), (frontend, OPS_PORT), (engine, OPS_PORT), (engine, KV_HAND_OVER_PORT))
    for host, port in inner:
        assert connect(clients, "foreign", host, port, "open") == "open"


def test_allow_from_narrows_who_may_send_requests(clients: Namespace) -> None:
    clients.apply(DEMO.read_text())
    clients.wait_for_ranks("demo", 2)
    change(clients, {"allowFrom": [FRIEND]})
    assert connect(clients, "foreign", "demo", 80, "blocked") == "blocked"
    assert connect(clients, "friend", "demo", 80, "open") == "open"
    clients.kubectl("delete", "pod", "demo-engine-0")  # its successor connects as well
    clients.wait_for_ranks("demo", 2)


def change(namespace: Namespace, network: Object) -> None:
    """Change the demo service's network settings, which rolls out nothing."""
    before = sorted(parts(namespace, "frontend") + parts(namespace, "engine"))
    namespace.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps({"spec": {"network": network}}))
    namespace.wait_for_ranks("demo", 2)
    assert sorted(parts(namespace, "frontend") + parts(namespace, "engine")) == before


def parts(namespace: Namespace, component: str) -> list[str]:
    """Return the addresses of the component's ready pods."""
    selector = f"app.kubernetes.io/instance=demo,app.kubernetes.io/component={component}"
    items = namespace.get("pods", "--selector", selector)["items"]
    return [item["status"]["podIP"] for item in items if is_ready(item)]


def make_clients(namespace: Namespace) -> None:
    for name in ("friend", "foreign"):
        pod = idle_pod(name, image_of_frontends(namespace.cluster))
        pod["metadata"]["labels"] = {"role": name}
        namespace.apply(pod)
    for name in ("friend", "foreign"):
        namespace.wait(f"pod/{name}", "condition=Ready")


def policy(name: str, ingress: list[Object]) -> Object:
    """Return a policy for the pod `server`."""
    spec = {"podSelector": {"matchLabels": {"role": "server"}}, "policyTypes": ["Ingress"], "ingress": ingress}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def address(namespace: Namespace, pod: str) -> str:
    return str(namespace.get(f"pod/{pod}")["status"]["podIP"])


def connect(namespace: Namespace, pod: str, host: str, port: int, wanted: str, seconds: int = 15) -> str:
    """Return whether a port is open, closed or blocked for a pod. Retries until the result is `wanted`."""
    asked = ("python", "-c", CONNECT, host, str(port), wanted, str(seconds))
    return namespace.kubectl("exec", pod, "--", *asked).strip()
