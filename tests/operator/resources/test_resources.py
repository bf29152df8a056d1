"""The rendered workloads, compared with golden files.

KVASIR_UPDATE_GOLDEN=1 rewrites the files: review the difference. full.yaml and adapted.yaml begin with their
InferenceServices, which set every field. The others contain the examples of manifests/.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.cli import engine as engine_command
from kvasir.cli import frontend as frontend_command
from kvasir.config.nodes import NodesConfig
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.endpoints import KV_HAND_OVER_PORT
from kvasir_contract.environment import POD_IP
from kvasir_operator.resources.engine_stateful_set import engine_stateful_set
from kvasir_operator.resources.frontend_deployment import frontend_deployment
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION, TEMPLATE_ANNOTATION
from kvasir_operator.resources.pod import option_args
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

GOLDEN = Path(__file__).parents[1] / "golden"
CRD = Path(__file__).parents[3] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"
EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
DEMO = EXAMPLES / "demo.yaml"
GIVEN = ("full", "adapted")
CASES = ("demo", "gpu", *GIVEN)
RELEASE = Release(frontend_image="kvasir-frontend:test", engine_image="kvasir-engine:test", version="1.2.3")
LINK_SECRET = "qwen-link-b2c4d6f789"

Render = Callable[[InferenceService, Release, str], dict[str, Any]]
RENDER: dict[str, Render] = {"engine": engine_stateful_set, "frontend": frontend_deployment}


def load(path: Path, **changes: Any) -> InferenceService:
    manifest = next(yaml.safe_load_all(path.read_text()))
    completed, problems = CRDSchema.of_crd().complete({**manifest, **changes})
    assert not problems
    return parse_service(completed)


def service(case: str) -> InferenceService:
    return load((GOLDEN if case in GIVEN else EXAMPLES) / f"{case}.yaml")


def pod_spec(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("case", CASES)
def test_workloads_are_those_of_the_golden_files(case: str) -> None:
    """The template's copy in an annotation is compared with the template and is not written out a second time."""
    rendered = [render(service(case), RELEASE, LINK_SECRET) for render in RENDER.values()]
    for workload in rendered:
        recorded = workload["metadata"]["annotations"].pop(TEMPLATE_ANNOTATION)
        assert json.loads(recorded) == workload["spec"]["template"]
    path = GOLDEN / f"{case}.yaml"
    given = path.read_text().partition("---\n")[0] + "---\n" if case in GIVEN else ""
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        path.write_text(given + yaml.safe_dump_all(rendered, sort_keys=False, width=116))
    assert rendered == list(yaml.safe_load_all(path.read_text().removeprefix(given)))


def test_the_examples_set_every_field_of_the_spec() -> None:
    def unset(schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
        for name, inner in schema.get("properties", {}).items():
            if name not in value:
                yield f"{path}.{name}"
            elif isinstance(value[name], dict):
                yield from unset(inner, value[name], f"{path}.{name}")

    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    example, adapted = (next(yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text())) for case in GIVEN)
    missing = set(unset(schema["properties"]["spec"], example["spec"], "spec"))
    missing -= {f"spec.model.{field}" for field in adapted["spec"]["model"]}
    missing = {path for path in missing if not path.startswith("spec.frontend.pod.")}  # as spec.engine.pod
    # they contradict kvCache.memory and expose.ingressClassName
    assert missing == {"spec.engine.kvCache.memoryUtilization", "spec.expose.gateway"}


@pytest.mark.parametrize("component", ["engine", "frontend"])
@pytest.mark.parametrize("case", CASES)
def test_rendering_twice_gives_the_same(case: str, component: str) -> None:
    assert RENDER[component](service(case), RELEASE, LINK_SECRET) == RENDER[component](
        service(case), RELEASE, LINK_SECRET
    )


@pytest.mark.parametrize("case", CASES)
def test_container_args_are_accepted_by_the_process_they_start(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVASIR_")]:
        monkeypatch.delenv(name)
    container = pod_spec(engine_stateful_set(service(case), RELEASE, LINK_SECRET))["containers"][0]
    (index,) = (
        variable["name"]
        for variable in container["env"]
        if "pod-index" in variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    )
    monkeypatch.setenv(index, "3")
    command, *args = container["args"]
    assert command == "engine"
    engine = engine_command.config_of(engine_command.parser().parse_args(args))
    assert engine.model.served_model_name == service(case).model.served_names
    assert engine.cache.kv_cache_memory_bytes == service(case).engine.kv_cache.memory
    assert engine.process.drain_timeout == service(case).rollout.drain_timeout
    split = 1, NodesConfig(2, 1, "qwen-engine-2.qwen-engine")
    rank, nodes = split if case == "full" else (3, NodesConfig())
    assert (engine.parallel.data_parallel_rank, engine.nodes) == (rank, nodes)

    command, *args = pod_spec(frontend_deployment(service(case), RELEASE, LINK_SECRET))["containers"][0]["args"]
    assert command == "frontend"
    frontend = frontend_command.config_of(frontend_command.parser().parse_args(args))
    assert frontend.process.drain_timeout == service(case).frontend.drain_timeout


def engine_pod(**engine: Any) -> dict[str, Any]:
    spec = {"model": {"source": "demo://"}, "engine": engine}
    return pod_spec(engine_stateful_set(load(DEMO, spec=spec), RELEASE, LINK_SECRET))


@pytest.mark.parametrize(
    ("engine", "limits"),
    [
        ({}, {"nvidia.com/gpu": "1"}),
        ({"tensorParallelSize": 4}, {"nvidia.com/gpu": "4"}),
        (
            {"tensorParallelSize": 2, "pod": {"resources": {"limits": {"memory": "4Gi"}}}},
            {"memory": "4Gi", "nvidia.com/gpu": "2"},
        ),
        ({"resourceName": "", "tensorParallelSize": 2}, None),
    ],
)
def test_a_pod_takes_one_of_the_resource_per_worker(engine: dict[str, Any], limits: dict[str, str] | None) -> None:
    resources = engine_pod(**engine)["containers"][0].get("resources", {})
    assert resources.get("limits") == limits


def test_sizes_of_one_are_not_given_as_options() -> None:
    """The pods of existing services stay as they are when the operator is upgraded."""
    options = {"tensorParallelSize": "--tensor-parallel-size", "pipelineParallelSize": "--pipeline-parallel-size"}
    for field, option in options.items():
        whole, split = (engine_pod(resourceName="", **{field: size})["containers"][0]["args"] for size in (1, 2))
        assert [arg for arg in split if arg not in whole] == [option, "2"]


@pytest.mark.parametrize(
    ("engine", "hands_over"),
    [
        ({"resourceName": ""}, True),
        ({}, False),
        ({"resourceName": "", "tensorParallelSize": 2}, False),
        ({"resourceName": "", "pipelineParallelSize": 2, "nodes": 2}, False),
    ],
)
def test_engines_with_one_worker_on_a_cpu_hand_kv_over(engine: dict[str, Any], hands_over: bool) -> None:
    (container,) = engine_pod(**engine)["containers"]
    variables = {variable["name"]: variable.get("valueFrom") for variable in container["env"]}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    assert variables.get(POD_IP) == (address if hands_over else None)
    port = {"name": "kv-hand-over", "containerPort": KV_HAND_OVER_PORT}
    assert (port in container["ports"]) is hands_over


@pytest.mark.parametrize(("workers", "nodes", "limit"), [(1, 1, "1Gi"), (8, 1, "8Gi"), (8, 4, "2Gi")])
def test_shared_memory_grows_with_the_workers_of_a_pod(workers: int, nodes: int, limit: str) -> None:
    pod = engine_pod(resourceName="", tensorParallelSize=workers, nodes=nodes)
    (volume,) = (v for v in pod["volumes"] if v["name"] == "kvasir-shm")
    assert volume["emptyDir"]["sizeLimit"] == limit


@pytest.mark.parametrize("component", ["engine", "frontend"])
@pytest.mark.parametrize("case", ["demo", "gpu"])
def test_pods_meet_the_restricted_standard(case: str, component: str) -> None:
    spec = pod_spec(RENDER[component](service(case), RELEASE, LINK_SECRET))
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_selectors_match_pods_with_any_labels_of_the_user(component: str) -> None:
    spec = RENDER[component](service("full"), RELEASE, LINK_SECRET)["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_each_side_gets_its_own_secret_and_the_others_public_key() -> None:
    def keys(workload: dict[str, Any]) -> set[str]:
        volume = next(v for v in pod_spec(workload)["volumes"] if v["name"] == "kvasir-link")
        assert volume["secret"]["secretName"] == LINK_SECRET
        return {item["key"] for item in volume["secret"]["items"]}

    assert keys(engine_stateful_set(service("demo"), RELEASE, LINK_SECRET)) == {"client.secret", "server.public"}
    assert keys(frontend_deployment(service("demo"), RELEASE, LINK_SECRET)) == {"server.secret", "client.public"}


def test_grace_period_outlasts_the_drain() -> None:
    full = service("full")
    assert pod_spec(engine_stateful_set(full, RELEASE, LINK_SECRET))["terminationGracePeriodSeconds"] == 90 + 15
    assert pod_spec(frontend_deployment(full, RELEASE, LINK_SECRET))["terminationGracePeriodSeconds"] == 5 + 90 + 15


def test_a_toleration_of_the_users_stands_for_ours() -> None:
    tolerations = pod_spec(engine_stateful_set(service("full"), RELEASE, LINK_SECRET))["tolerations"]
    unreachable = [t for t in tolerations if t["key"] == "node.kubernetes.io/unreachable"]
    assert [toleration["tolerationSeconds"] for toleration in unreachable] == [5]


def test_the_longest_name_fits_into_every_derived_name() -> None:
    longest = load(DEMO, metadata={"name": "a" * 45})
    revision_label = engine_stateful_set(longest, RELEASE, LINK_SECRET)["metadata"]["name"] + "-0123456789"
    service_name = frontend_deployment(longest, RELEASE, LINK_SECRET)["metadata"]["name"]
    assert len(revision_label) <= 63
    assert len(service_name) <= 63


def test_options_left_out_are_those_without_a_value() -> None:
    assert option_args(max_num_seqs=8, max_model_len=None, served_model_name=("a", "b"), share=0.5) == [
        *("--max-num-seqs", "8"),
        *("--served-model-name", "a", "b"),
        *("--share", "0.5"),
    ]


@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_new_link_keys_change_the_template(component: str) -> None:
    template = RENDER[component](service("full"), RELEASE, "qwen-link-other")["spec"]["template"]
    assert template["metadata"]["annotations"][LINK_KEYS_ANNOTATION] == "qwen-link-other"


@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_managed_variables_are_those_of_the_template(component: str) -> None:
    container = pod_spec(RENDER[component](service("full"), RELEASE, LINK_SECRET))["containers"][0]
    variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    managed = variables.pop("KVASIR_MANAGED_VARIABLES").split(",")
    assert managed == sorted(name for name in variables if name.startswith("KVASIR_"))


@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_ports_are_reached_over_ipv4_and_ipv6(component: str) -> None:
    text = yaml.safe_dump(RENDER[component](service("full"), RELEASE, LINK_SECRET))
    assert "0.0.0.0" not in text
    assert "127.0.0.1" not in text


@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_probes_ask_the_ops_port(component: str) -> None:
    container = pod_spec(RENDER[component](service("demo"), RELEASE, LINK_SECRET))["containers"][0]
    probes = [value for name, value in container.items() if name.endswith("Probe")]
    assert {probe["httpGet"]["port"] for probe in probes} == {"ops"}
    assert {"name": "ops", "containerPort": 8081} in container["ports"]


@pytest.mark.parametrize(
    ("affinity", "constraints", "keys"),
    [
        ({}, [], ["kubernetes.io/hostname"]),
        ({"nodeAffinity": {}}, [], ["kubernetes.io/hostname"]),
        ({"podAntiAffinity": {}}, [], []),
        ({}, [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}], ["zone"]),
    ],
)
@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_pods_spread_over_nodes_unless_the_user_places_them(
    component: str, affinity: dict[str, Any], constraints: list[dict[str, Any]], keys: list[str]
) -> None:
    pod = {"affinity": affinity, "topologySpreadConstraints": constraints}
    spec = yaml.safe_load(DEMO.read_text())["spec"]
    spec[component] = {**spec.get(component, {}), "pod": pod}
    spread = pod_spec(RENDER[component](load(DEMO, spec=spec), RELEASE, LINK_SECRET)).get(
        "topologySpreadConstraints", []
    )
    assert [constraint["topologyKey"] for constraint in spread] == keys
    assert all(constraint["labelSelector"]["matchLabels"] for constraint in spread)
