"""The schema in a real API server: its rules reject with their messages, and its defaults are filled in.

tests/runtime/local covers the same schema in `kvasir up`.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.operator.harness.refusals import REFUSALS, cases
from e2e.operator.harness.schema_rules import Refusal, merged, rules
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import ClusterError, InvalidError, Object
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE

FULL = Path(__file__).parents[2] / "tests" / "operator" / "golden" / "full.yaml"
CASES = dict(cases())


def test_every_rule_has_a_case() -> None:
    assert [rule for rule in rules() if not any(rule.is_broken_by(case) for case in REFUSALS)] == []


@pytest.mark.parametrize("title", CASES)
async def test_an_invalid_spec_is_rejected_with_the_reason(world: World, title: str) -> None:
    case = CASES[title]
    if case.before:
        await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, case.name, case.before))
    with pytest.raises(InvalidError) as refusal:
        await want(world, case)
    assert f"{case.path}: Invalid value" in str(refusal.value)
    assert case.words in str(refusal.value)


async def test_an_unknown_field_is_refused_by_a_strict_client(world: World) -> None:
    """kubectl is a strict client. The message contains the field's name."""
    path = INFERENCE_SERVICE.path(world.namespace)
    misspelt = body(world, "demo", {"engine": {"dataParalelSize": 2}})
    with pytest.raises(ClusterError, match="dataParalelSize"):
        await world.request("POST", path, misspelt, {"fieldValidation": "Strict"})


async def test_defaults_are_filled_in(world: World) -> None:
    await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", {}))
    spec = (await world.service())["spec"]
    assert spec["engine"]["dataParallelSize"] == 1
    sizes = ("tensorParallelSize", "pipelineParallelSize", "nodes")
    assert [spec["engine"][size] for size in sizes] == [1, 1, 1]
    assert spec["engine"]["resourceName"] == "nvidia.com/gpu"
    assert spec["engine"]["kvCache"] == {"blockSize": 16, "memoryUtilization": 0.9}
    assert spec["frontend"] == {"drainTimeout": "300s"}
    assert spec["rollout"] == {"maxSurge": 1, "maxUnavailable": 1, "drainTimeout": "60s", "surgeTimeout": "30s"}
    assert spec["network"] == {"policy": True}
    assert (spec["paused"], spec["operatorClass"]) == (False, "")


@pytest.mark.parametrize("may", [True, False])
async def test_scale_to_zero_is_for_services_that_may(world: World, may: bool) -> None:
    zero = {"autoscaling": {"minRanks": 0, "toZeroAfter": "1h"}} if may else {}
    await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", zero))
    path = INFERENCE_SERVICE.path(world.namespace, "demo", "scale")
    scale = await world.request("GET", path)
    wanted = {**scale, "spec": {"replicas": 0}}
    if may:
        assert (await world.request("PUT", path, wanted))["spec"].get("replicas", 0) == 0
        return
    with pytest.raises(ClusterError, match=r"engine\.dataParallelSize is 0: only a service that may go to zero"):
        await world.request("PUT", path, wanted)


async def test_a_service_without_an_operator_is_pending(world: World) -> None:
    await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", {}))
    ready = await world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "Pending")


async def test_full_example_is_accepted_and_kept_as_it_is(world: World) -> None:
    """The API server also accepts numbers such as 0.5 as quantities, and prunes no field."""
    example = next(yaml.safe_load_all(FULL.read_text()))["spec"]
    await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", example))
    stored = (await world.service())["spec"]
    assert example["frontend"]["pod"]["resources"]["requests"]["cpu"] == 0.5
    assert merged(stored, example) == stored


async def want(world: World, case: Refusal) -> None:
    if case.before:
        await world.update(lambda spec: spec.update(merged(spec, case.change)), case.name)
    else:
        await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, case.name, case.change))


def body(world: World, name: str, spec: dict[str, Any]) -> Object:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": world.namespace},
        "spec": {"model": {"source": "demo://"}, **spec},
    }
