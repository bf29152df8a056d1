"""The resource as typed Python: what the schema of an older version let through is refused by its field's name."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.local.schema import Schema
from kvasir_operator.spec import InvalidSpec, parse_service

DEMO = Path(__file__).parents[2] / "manifests" / "examples" / "demo.yaml"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("engine.kvCache.memory", -1, "-1 is not a size"),
        ("engine.kvCache.memory", "much", "'much' is not a size"),
        ("frontend.drainTimeout", "soon", "'soon' is not a duration"),
        ("rollout.drainTimeout", "-1s", "'-1s' is not a duration"),
    ],
)
def test_a_value_that_means_nothing_is_an_invalid_spec(field: str, value: Any, words: str) -> None:
    completed, problems = Schema.of_crd().complete(yaml.safe_load(DEMO.read_text()))
    assert not problems
    parse_service(completed)
    broken = copy.deepcopy(completed)
    *parents, last = field.split(".")
    place = broken["spec"]
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(InvalidSpec) as error:
        parse_service(broken)
    assert str(error.value).startswith(f"spec.{field}: {words}")
