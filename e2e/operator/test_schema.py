"""The schema in the API server's hands: its rules refuse with their messages, its defaults are filled in.

What `kvasir up` makes of the same schema is tested in tests/runtime/local.
"""

from typing import Any

import pytest

from e2e.operator.world import World
from kvasir_operator.cluster import ClusterError, InvalidError, Object
from kvasir_operator.kinds import INFERENCE_SERVICE

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown scheme": ({"model": {"source": "s3://bucket/model"}}, "unknown URI scheme"),
    "hf without a name": ({"model": {"source": "hf://gpt2"}}, "write hf://org/name"),
    "relative file": ({"model": {"source": "file://model"}}, "write file:///path"),
    "no ranks": ({"engine": {"dataParallelSize": 0}}, "should be greater than or equal to 1"),
    "float16 on CPU": (
        {"engine": {"resourceName": "", "dtype": "float16"}},
        "dtype float16 is not supported on CPU",
    ),
    "utilization on CPU": (
        {"engine": {"resourceName": "", "kvCache": {"memoryUtilization": 0.5}}},
        "for CPU engines (resourceName",
    ),
    "memory twice": (
        {"engine": {"kvCache": {"memory": "1Gi", "memoryUtilization": 0.5}}},
        "contradict each other",
    ),
    "fewer tokens than sequences": (
        {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 32}},
        "maxNumBatchedTokens is below maxNumSeqs",
    ),
    "our own limit": (
        {"engine": {"pod": {"resources": {"limits": {"nvidia.com/gpu": 2}}}}},
        "Kvasir sets that limit itself",
    ),
    "an option that is a field": ({"engine": {"extraArgs": ["--dtype=auto"]}}, "has a field of its own"),
    "an option of ours": ({"frontend": {"extraArgs": ["--port", "1"]}}, "is set by Kvasir itself"),
    "a variable of ours": (
        {"engine": {"pod": {"env": [{"name": "KVASIR_LINK", "value": "x"}]}}},
        "KVASIR_ variables are set by Kvasir",
    ),
    "a label of ours": (
        {"frontend": {"pod": {"labels": {"app.kubernetes.io/name": "x"}}}},
        "are Kvasir's own",
    ),
    "no duration": ({"rollout": {"drainTimeout": "soon"}}, "drainTimeout"),
}

IMMUTABLE: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": {"source": "hf://org/other"}}, "for another model"),
    "dtype": ({"engine": {"dtype": "bfloat16"}}, "for another dtype"),
    "block size": ({"engine": {"kvCache": {"blockSize": 32}}}, "for another block size"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_spec_that_cannot_be_is_refused_with_the_reason(world: World, case: str) -> None:
    spec, words = REFUSED[case]
    with pytest.raises(InvalidError) as refusal:
        await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", spec))
    assert words in str(refusal.value)


@pytest.mark.parametrize("name", ["1st", "a.b", "a" * 46])
async def test_a_name_that_no_service_could_have_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, name, {}))


@pytest.mark.parametrize("case", IMMUTABLE)
async def test_what_cannot_change_in_place_is_refused(world: World, case: str) -> None:
    await world.create()
    spec, words = IMMUTABLE[case]

    def merge(old: dict[str, Any], new: dict[str, Any]) -> None:
        for field, value in new.items():
            if isinstance(value, dict):
                merge(old[field], value)
            else:
                old[field] = value

    with pytest.raises(InvalidError) as refusal:
        await world.update(lambda old: merge(old, spec))
    assert words in str(refusal.value)


async def test_an_unknown_field_is_refused_by_a_strict_client(world: World) -> None:
    """kubectl is one; the field's name is in the message."""
    path = INFERENCE_SERVICE.path(world.namespace)
    misspelt = body(world, "demo", {"engine": {"dataParalelSize": 2}})
    with pytest.raises(ClusterError, match="dataParalelSize"):
        await world.request("POST", path, misspelt, {"fieldValidation": "Strict"})


async def test_defaults_are_filled_in(world: World) -> None:
    await world.request("POST", INFERENCE_SERVICE.path(world.namespace), body(world, "demo", {}))
    spec = (await world.service())["spec"]
    assert spec["engine"]["dataParallelSize"] == 1
    assert spec["engine"]["resourceName"] == "nvidia.com/gpu"
    assert spec["engine"]["kvCache"] == {"blockSize": 16, "memoryUtilization": 0.9}
    assert spec["frontend"] == {"replicas": 1, "drainTimeout": "300s"}


def body(world: World, name: str, spec: dict[str, Any]) -> Object:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": world.namespace},
        "spec": {"model": {"source": "demo://"}, **spec},
    }
