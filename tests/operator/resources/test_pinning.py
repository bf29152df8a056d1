import copy
from dataclasses import replace
from typing import Any

import pytest

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.resources.engine_stateful_set import engine_stateful_set
from kvasir_operator.resources.frontend_deployment import frontend_deployment
from kvasir_operator.resources.names import INPUTS_ANNOTATION, RELEASE_ANNOTATION, TEMPLATE_ANNOTATION
from kvasir_operator.resources.pinning import MAX_TEMPLATE_BYTES, inputs, pin
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

SCHEMA = CRDSchema.of_crd()
OLD = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
NEW = Release(frontend_image="frontend:2", engine_image="engine:2", version="2.0.0")
SECRET = "demo-link-x"


def service(**spec: Any) -> InferenceService:
    spec = {"model": {"source": "demo://"}, **spec}
    completed, problems = SCHEMA.complete({"metadata": {"name": "demo", "uid": "1"}, "spec": spec})
    assert not problems
    return parse_service(completed)


def image_of(workload: dict[str, Any]) -> str:
    image: str = workload["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def stored(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the workload as the API server stores it, with an annotation and defaults that we did not send."""
    workload = copy.deepcopy(workload)
    workload["metadata"]["annotations"]["example.com/other"] = "x"
    workload["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    return workload


@pytest.mark.parametrize("render", [engine_stateful_set, frontend_deployment])
def test_a_new_release_keeps_the_template_as_it_was_sent(render: Any) -> None:
    old = render(service(), OLD, SECRET)
    pinned = pin(render(service(), NEW, SECRET), stored(old))
    assert pinned == old


def test_a_scaled_service_keeps_its_template() -> None:
    old = engine_stateful_set(service(), OLD, SECRET)
    pinned = pin(engine_stateful_set(service(engine={"dataParallelSize": 3}), NEW, SECRET), stored(old))
    assert pinned["spec"]["replicas"] == 3
    assert pinned["spec"]["template"] == old["spec"]["template"]


@pytest.mark.parametrize(
    ("changed", "secret"),
    [(service(engine={"maxNumSeqs": 8}), SECRET), (service(image="mine"), SECRET), (service(), "demo-link-y")],
)
def test_a_change_of_the_users_brings_the_new_template(changed: InferenceService, secret: str) -> None:
    desired = engine_stateful_set(changed, NEW, secret)
    assert pin(desired, stored(engine_stateful_set(service(), OLD, SECRET))) == desired


def test_the_same_release_repairs_its_template() -> None:
    desired = engine_stateful_set(service(), OLD, SECRET)
    drifted = stored(desired)
    drifted["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    drifted["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "{}"
    assert pin(desired, drifted) == desired


@pytest.mark.parametrize("text", [None, "", "[]", "{"])
def test_a_template_that_is_not_recorded_is_not_kept(text: str | None) -> None:
    old = stored(engine_stateful_set(service(), OLD, SECRET))
    del old["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    if text is not None:
        old["metadata"]["annotations"][TEMPLATE_ANNOTATION] = text
    assert image_of(pin(engine_stateful_set(service(), NEW, SECRET), old)) == "engine:2"


@pytest.mark.parametrize("annotations", [None, {}, {"example.com/other": "x"}])
def test_a_workload_without_record_is_not_kept(annotations: dict[str, str] | None) -> None:
    old = engine_stateful_set(service(), OLD, SECRET)
    old["metadata"]["annotations"] = annotations
    assert image_of(pin(engine_stateful_set(service(), NEW, SECRET), old)) == "engine:2"


@pytest.mark.parametrize(("surplus", "is_recorded"), [(0, True), (1, False)])
def test_a_template_is_recorded_up_to_the_limit(surplus: int, is_recorded: bool) -> None:
    def annotations(length: int) -> dict[str, str]:
        env = [{"name": f"V{number}", "value": "x" * 30000} for number in range(4)]
        env.append({"name": "LAST", "value": "x" * length})
        found: dict[str, str] = engine_stateful_set(service(engine={"pod": {"env": env}}), OLD, SECRET)["metadata"][
            "annotations"
        ]
        return found

    left = MAX_TEMPLATE_BYTES - len(annotations(0)[TEMPLATE_ANNOTATION])
    found = annotations(left + surplus)
    assert set(found) == {INPUTS_ANNOTATION, RELEASE_ANNOTATION, *([TEMPLATE_ANNOTATION] if is_recorded else [])}


def test_inputs_are_those_of_the_component_alone() -> None:
    plain, other = service(), service(frontend={"drainTimeout": "1m"})
    assert inputs(plain, "engine", SECRET) == inputs(other, "engine", SECRET)
    assert inputs(plain, "frontend", SECRET) != inputs(other, "frontend", SECRET)


@pytest.mark.parametrize(
    "spec",
    [
        {"rollout": {"maxSurge": 0}},
        {"network": {"policy": False}},
        {"paused": True},
        {"operatorClass": "x"},
        {"engine": {"dataParallelSize": 2}},
        {"frontend": {"replicas": 2}},
    ],
)
@pytest.mark.parametrize("component", ["engine", "frontend"])
def test_fields_outside_of_templates_are_not_inputs(spec: dict[str, Any], component: Any) -> None:
    assert inputs(service(**spec), component, SECRET) == inputs(service(), component, SECRET)


def test_a_release_is_identified_by_version_and_images() -> None:
    releases = [
        OLD,
        replace(OLD, version="1.0.1"),
        replace(OLD, engine_image="x"),
        replace(OLD, frontend_image="x"),
    ]
    assert len({release.id for release in releases}) == 4
    assert OLD.id == replace(OLD, operator_namespace="x", reads_nodes=False).id
