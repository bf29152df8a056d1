"""The objects of a service besides the two workloads, with ownership, labels and keys."""

import base64
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir.wire import keys as runtime_keys
from kvasir_contract.endpoints import KV_HAND_OVER_PORT, MASTER_PORT, OPS_PORT
from kvasir_operator.cluster.kinds import CHILDREN, HTTP_ROUTE, INGRESS, JOB, kind_of
from kvasir_operator.link_keys import new_link_keys, new_link_secret_name
from kvasir_operator.resources.children import children, children_selector
from kvasir_operator.resources.network import http_service, url
from kvasir_operator.resources.release import Release
from kvasir_operator.resources.security import link_secret
from kvasir_operator.spec import InferenceService, parse_service

GOLDEN = Path(__file__).parents[1] / "golden" / "children.yaml"
DEMO = Path(__file__).parents[3] / "manifests" / "examples" / "demo.yaml"
RELEASE = Release(
    frontend_image="kvasir-frontend:test",
    engine_image="kvasir-engine:test",
    version="1.2.3",
    operator_namespace="kvasir-system",
)
LINK_SECRET = "demo-link-b2c4d6f789"
SCHEMA = CRDSchema.of_crd()
UID = "5e7f4e2c-0000-0000-0000-000000000000"


def service(name: str = "demo", **spec: Any) -> InferenceService:
    manifest = yaml.safe_load(DEMO.read_text())
    manifest = {**manifest, "metadata": {"name": name, "uid": UID}, "spec": {**manifest["spec"], **spec}}
    completed, problems = SCHEMA.complete(manifest)
    assert not problems
    return parse_service(completed)


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}


def test_objects_are_those_of_the_golden_file() -> None:
    """Without the workloads, which have their own golden files."""
    rendered = [
        entry for entry in children(service(), RELEASE, LINK_SECRET) if "template" not in entry.get("spec", {})
    ]
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(rendered, sort_keys=False, width=116))
    assert rendered == list(yaml.safe_load_all(GOLDEN.read_text()))


def test_every_object_is_owned_and_found_by_its_labels() -> None:
    wanted = dict(pair.split("=") for pair in children_selector("demo").split(","))
    for child in children(service(), RELEASE, LINK_SECRET):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert wanted.items() <= child["metadata"]["labels"].items()
        assert kind_of(child) in CHILDREN


def test_namespaces_of_the_monitoring_read_metrics_only() -> None:
    release = replace(RELEASE, monitoring_namespaces=("kvasir-system", "monitoring"))
    policies = [each for each in children(service(), release, LINK_SECRET) if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 2
    for policy in policies:
        rules = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
        assert [peer["namespaceSelector"]["matchLabels"] for peer in rules.pop(OPS_PORT)["from"]] == [
            {"kubernetes.io/metadata.name": "kvasir-system"},
            {"kubernetes.io/metadata.name": "monitoring"},
        ]
        assert "monitoring" not in str(rules)


def test_dependencies_of_pods_are_applied_before_them() -> None:
    cached = service(model={"source": "hf://org/name", "loraAdapters": [], "cache": {"size": "1Gi"}})
    kinds = [child["kind"] for child in children(cached, RELEASE, LINK_SECRET)]
    assert kinds[0] == "ServiceAccount"
    assert kinds[-2:] == ["Deployment", "StatefulSet"]
    assert list(dict.fromkeys(kinds)) == [kind.kind for kind in CHILDREN if kind not in (INGRESS, HTTP_ROUTE, JOB)]


def test_names_of_the_longest_service_are_names_of_services() -> None:
    for child in children(service("a" * 45), RELEASE, LINK_SECRET):
        assert len(child["metadata"]["name"]) <= 63


def test_services_select_the_pods_they_are_about() -> None:
    objects = by_name(children(service(), RELEASE, LINK_SECRET))
    for name, workload in (
        ("demo", ("Deployment", "demo-frontend")),
        ("demo-frontend", ("Deployment", "demo-frontend")),
        ("demo-engine", ("StatefulSet", "demo-engine")),
    ):
        template = objects[workload]["spec"]["template"]
        spec = objects["Service", name]["spec"]
        assert spec["selector"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        for port in spec["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in ports or target in ports.values()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--ssl-certfile", "/tls/tls.crt"], "https://demo.default.svc:80/v1"),
        (["--ssl-keyfile=/tls/tls.key", "--ssl_certfile=/tls/tls.crt"], "https://demo.default.svc:80/v1"),
        (["--max-live-requests", "8"], "http://demo.default.svc/v1"),
    ],
)
def test_the_url_and_the_service_name_the_protocol_of_the_pods(args: list[str], expected: str) -> None:
    described = service(frontend={"extraArgs": args})
    assert url(described) == expected
    (port,) = http_service(described)["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (80, expected.partition(":")[0])


def test_engines_find_the_frontends_at_their_templates_address() -> None:
    objects = by_name(children(service(), RELEASE, LINK_SECRET))
    environment = objects["StatefulSet", "demo-engine"]["spec"]["template"]["spec"]["containers"][0]["env"]
    link = next(variable["value"] for variable in environment if variable["name"] == "KVASIR_LINK")
    (port,) = [port for port in objects["Service", "demo-frontend"]["spec"]["ports"] if port["name"] == "link"]
    assert link == f"tcp://demo-frontend:{port['port']}"
    assert objects["Service", "demo-frontend"]["spec"]["publishNotReadyAddresses"] is True


def test_link_secret_is_owned_and_holds_every_key() -> None:
    keys = new_link_keys()
    secret = link_secret(service(), LINK_SECRET, keys)
    assert secret["metadata"]["name"] == LINK_SECRET
    assert secret["metadata"]["ownerReferences"][0]["uid"] == UID
    assert secret["immutable"] is True
    assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == keys


def test_link_secret_names_differ_and_are_names_of_objects() -> None:
    names = {new_link_secret_name(service("a" * 45)) for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"a{45}-link-[a-z0-9]{10}", name) for name in names)


@pytest.mark.parametrize(
    ("pods", "reads_nodes", "max_unavailable"), [(1, True, 0), (2, True, 1), (1, False, 1), (2, False, 1)]
)
def test_an_only_pod_is_evicted_after_the_operator_moved_it(
    pods: int, reads_nodes: bool, max_unavailable: int
) -> None:
    given = service(engine={"dataParallelSize": pods, "resourceName": ""}, frontend={"replicas": pods})
    objects = by_name(children(given, replace(RELEASE, reads_nodes=reads_nodes), LINK_SECRET))
    for component in ("engine", "frontend"):
        assert objects["PodDisruptionBudget", f"demo-{component}"]["spec"]["maxUnavailable"] == max_unavailable


@pytest.mark.parametrize(
    ("ranks", "rollout", "max_unavailable"),
    [(1, {}, 0), (2, {}, 0), (2, {"maxSurge": 0}, 0), (1, {"maxSurge": 0}, 1)],
)
def test_evictions_leave_no_half_of_an_engine(ranks: int, rollout: dict[str, Any], max_unavailable: int) -> None:
    """The operator replaces all pods of an engine together. Where it does not, the drain must end nevertheless."""
    given = service(engine={"dataParallelSize": ranks, **TWO_PODS}, rollout=rollout)
    assert by_name(children(given, RELEASE, LINK_SECRET))[BUDGET]["spec"]["maxUnavailable"] == max_unavailable
    blind = by_name(children(given, replace(RELEASE, reads_nodes=False), LINK_SECRET))
    assert blind[BUDGET]["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("toleration", "max_unavailable"),
    [
        ({"operator": "Exists"}, 1),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, 1),
        ({"operator": "Exists", "effect": "NoExecute"}, 0),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, 0),
    ],
)
def test_a_pod_that_the_operator_does_not_move_is_evicted(toleration: dict[str, str], max_unavailable: int) -> None:
    """A pod that tolerates cordons stays, because its successor might be placed on the same node."""
    pod = {"pod": {"tolerations": [toleration]}}
    objects = by_name(children(service(engine=pod, frontend=pod), RELEASE, LINK_SECRET))
    for component in ("engine", "frontend"):
        assert objects["PodDisruptionBudget", f"demo-{component}"]["spec"]["maxUnavailable"] == max_unavailable


def test_pods_of_an_engine_find_the_first_one() -> None:
    """The headless Service has names for pods that are not ready, because readiness needs all pods."""
    objects = by_name(children(service(engine=TWO_PODS), RELEASE, LINK_SECRET))
    workload, names = objects["StatefulSet", "demo-engine"]["spec"], objects["Service", "demo-engine"]
    args = workload["template"]["spec"]["containers"][0]["args"]
    host, _, domain = args[args.index("--master-addr") + 1].partition(".")
    assert host.format(leader=4) == f"{objects['StatefulSet', 'demo-engine']['metadata']['name']}-4"
    assert domain == names["metadata"]["name"] == workload["serviceName"]
    assert names["spec"]["publishNotReadyAddresses"] is True
    assert workload["podManagementPolicy"] == "Parallel"


TWO_PODS: dict[str, Any] = {"resourceName": "", "tensorParallelSize": 2, "nodes": 2}
BUDGET = ("PodDisruptionBudget", "demo-engine")


def ingress(
    component: str, release: Release = RELEASE, engine: dict[str, Any] | None = None, **network: Any
) -> dict[int, Any]:
    """Return the peers by port; None for everyone."""
    changed = service(network=network) if engine is None else service(network=network, engine=engine)
    objects = by_name(children(changed, release, LINK_SECRET))
    spec = objects["NetworkPolicy", f"demo-{component}"]["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    rules = spec.get("ingress", [])
    assert all(rule.get("from") != [] for rule in rules), "an empty list would mean everyone"
    return {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}


OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kvasir-system"}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
GATEWAY = {"podSelector": {"matchLabels": {"app": "gateway"}}}


def test_each_port_admits_those_who_need_it() -> None:
    (engines,) = ingress("frontend")[5570]
    assert engines["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "engine"
    assert engines["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "demo"
    assert ingress("frontend") == {8000: None, 5570: [engines], 8081: [OPERATOR]}
    assert ingress("engine") == {8081: [OPERATOR], KV_HAND_OVER_PORT: [engines]}


def test_engines_that_cannot_hand_kv_over_have_no_port_for_it() -> None:
    for engine in ({}, {"resourceName": "", "tensorParallelSize": 2}):  # on a GPU, and with several workers
        assert ingress("engine", engine=engine) == {8081: [OPERATOR]}


def test_pods_of_engines_admit_only_engines_of_their_service() -> None:
    objects = by_name(children(service(engine=TWO_PODS), RELEASE, LINK_SECRET))
    ops, master, collectives = objects["NetworkPolicy", "demo-engine"]["spec"]["ingress"]
    assert ops["ports"] == [{"protocol": "TCP", "port": 8081}]
    assert master["ports"] == [{"protocol": "TCP", "port": MASTER_PORT}]
    assert collectives["ports"] == [{"protocol": "TCP", "port": 32768, "endPort": 60999}]
    template = objects["StatefulSet", "demo-engine"]["spec"]["template"]
    for rule in (master, collectives):
        (peer,) = rule["from"]
        wanted = peer["podSelector"]["matchLabels"]
        assert wanted["app.kubernetes.io/instance"] == "demo"
        assert wanted.items() <= template["metadata"]["labels"].items()
        assert set(peer) == {"podSelector"}, "a namespaceSelector would admit other namespaces"


def test_peers_of_the_user_are_admitted() -> None:
    network: dict[str, Any] = {"allowFrom": [GATEWAY], "allowMetricsFrom": [MONITORING]}
    assert ingress("frontend", **network)[8000] == [GATEWAY]
    assert ingress("frontend", **network)[8081] == [OPERATOR, MONITORING]
    assert ingress("engine", **network)[8081] == [OPERATOR, MONITORING]


def test_an_operator_outside_the_cluster_opens_no_port() -> None:
    outside = replace(RELEASE, operator_namespace="")
    assert set(ingress("frontend", outside)) == {8000, 5570}
    assert set(ingress("engine", outside)) == {KV_HAND_OVER_PORT}


def test_network_policies_can_be_left_out() -> None:
    objects = children(service(network={"policy": False}), RELEASE, LINK_SECRET)
    assert "NetworkPolicy" not in {child["kind"] for child in objects}


def test_processes_and_operator_use_the_same_names(tmp_path: Path) -> None:
    for name, key in new_link_keys().items():
        (tmp_path / name).write_text(key)
    frontend = runtime_keys.load_frontend_keys(str(tmp_path))
    engine = runtime_keys.load_engine_keys(str(tmp_path))
    assert (frontend.peer_public, engine.peer_public) == (engine.public, frontend.public)
