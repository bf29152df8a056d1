"""The resource as typed Python: values that an older schema accepted are rejected with the field's name."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.autoscaling_spec import MAX_IDLE_SECONDS, AutoscalingSpec, LoadTargets
from kvasir_operator.spec import parse_service
from kvasir_operator.spec_values import InvalidSpec

DEMO = Path(__file__).parents[2] / "manifests" / "examples" / "demo.yaml"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("engine.kvCache.memory", -1, "-1 is not a size"),
        ("engine.kvCache.memory", "much", "'much' is not a size"),
        ("engine.kvCache.memory", "0Gi", "'0Gi' is too small"),
        ("frontend.maxParsedBytes", "much", "'much' is not a size"),
        ("engine.pod.resources.limits.cpu", True, "True is not a valid quantity"),
        ("engine.pod.resources.limits.cpu", -0.5, "-0.5 is not a valid quantity"),
        ("engine.pod.resources.limits.cpu", {}, "{} is not a valid quantity"),
        ("frontend.pod.resources.requests.memory", "4 Gi", "'4 Gi' is not a valid quantity"),
        ("frontend.drainTimeout", "soon", "'soon' is not a duration"),
        ("rollout.drainTimeout", "-1s", "'-1s' is not a duration"),
        ("autoscaling.toZeroAfter", "soon", "'soon' is not a duration"),
    ],
)
def test_a_value_that_means_nothing_is_an_invalid_spec(field: str, value: Any, words: str) -> None:
    completed, problems = CRDSchema.of_crd().complete(yaml.safe_load(DEMO.read_text()))
    assert not problems
    parse_service(completed)
    broken = copy.deepcopy(completed)
    *parents, last = field.split(".")
    place = broken["spec"]
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    with pytest.raises(InvalidSpec) as error:
        parse_service(broken)
    assert str(error.value).startswith(f"spec.{field}: {words}")


def test_a_service_of_an_older_schema_is_understood() -> None:
    completed, _ = CRDSchema.of_crd().complete(yaml.safe_load(DEMO.read_text()))
    older = copy.deepcopy(completed)
    del older["spec"]["rollout"]["surgeTimeout"]
    assert parse_service(older) == parse_service(completed)


@pytest.mark.parametrize(
    ("autoscaling", "asked", "ranks"),
    [
        (None, 3, 3),
        ({"minRanks": 1}, 3, 3),
        ({"minRanks": 4}, 3, 4),
        ({"minRanks": 1, "maxRanks": 2}, 3, 2),
        ({"minRanks": 0, "toZeroAfter": "15m"}, 3, 3),
        ({"minRanks": 0, "toZeroAfter": "15m"}, 0, 1),
        ({"minRanks": 0, "maxRanks": 1, "toZeroAfter": "15m"}, 3, 1),
    ],
)
def test_autoscaling_limits_the_number_of_engines(autoscaling: Any, asked: int, ranks: int) -> None:
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["engine"]["dataParallelSize"] = asked
    manifest["spec"] |= {} if autoscaling is None else {"autoscaling": autoscaling}
    completed, problems = CRDSchema.of_crd().complete(manifest)
    assert not problems
    parsed = parse_service(completed)
    assert parsed.engine.data_parallel_size == ranks
    idle = 900.0 if asked else MAX_IDLE_SECONDS
    assert parsed.autoscaling.to_zero_after == (idle if autoscaling and not autoscaling["minRanks"] else None)


def test_targets_are_numbers_and_seconds() -> None:
    manifest = yaml.safe_load(DEMO.read_text())
    targets = {"queueSeconds": 2, "ttft": "500ms", "kvCacheUtilization": 0.8}
    manifest["spec"]["autoscaling"] = {"minRanks": 1, "maxRanks": 8, "targets": targets, "scaleUpAfter": "15s"}
    completed, problems = CRDSchema.of_crd().complete(manifest)
    assert not problems
    assert parse_service(completed).autoscaling == AutoscalingSpec(
        1, 8, None, LoadTargets(2, 0.8, 0.5), scale_up_after=15.0, scale_down_after=300.0
    )


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        (2, "2"),
        (0.5, "0.5"),
        (2.0, "2.0"),
        (1e-05, "0.00001"),
        (1e22, "1" + "0" * 22),
        ("500m", "500m"),
        ("1e3", "1e3"),
    ],
)
def test_quantities_are_rendered_as_strings(given: Any, rendered: str) -> None:
    manifest = yaml.safe_load(DEMO.read_text())
    manifest["spec"]["frontend"] = {"pod": {"resources": {"limits": {"cpu": given}}}}
    completed, problems = CRDSchema.of_crd().complete(manifest)
    assert not problems
    assert parse_service(completed).frontend.pod.resources == {"limits": {"cpu": rendered}}


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_the_resource_that_engines_take_is_not_set_twice(kind: str) -> None:
    engine = {"pod": {"resources": {kind: {"nvidia.com/gpu": 2}}}}
    given = {"metadata": {"name": "demo"}, "spec": {"model": {"source": "demo://"}, "engine": engine}}
    completed, problems = CRDSchema.of_crd().complete(given)
    assert not problems
    with pytest.raises(InvalidSpec, match=rf"spec.engine.pod.resources.{kind}: remove nvidia.com/gpu"):
        parse_service(completed)
