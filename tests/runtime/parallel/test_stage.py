import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.parallel.stage import Stage

FIRST, LAST = frozenset(("embed",)), frozenset(("embed", "norm", "head"))


def sizes(num_layers: int, stages: int) -> list[int]:
    return [len(Stage.of(num_layers, stage, stages).layers) for stage in range(stages)]


@pytest.mark.parametrize(
    ("num_layers", "stages", "expected"),
    [
        (12, 1, [12]),
        (12, 3, [4, 4, 4]),
        (3, 2, [2, 1]),
        (13, 4, [3, 3, 4, 3]),
        (14, 4, [3, 4, 4, 3]),
        (15, 4, [4, 4, 4, 3]),
        (4, 4, [1, 1, 1, 1]),
    ],
)
def test_the_remainder_is_in_the_middle_first(num_layers: int, stages: int, expected: list[int]) -> None:
    assert sizes(num_layers, stages) == expected


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="3 layers cannot be split into 4 stages"):
        Stage.of(3, 0, 4)


@given(stages=st.integers(1, 12), more=st.integers(0, 60))
def test_stages_have_each_layer_once_in_order(stages: int, more: int) -> None:
    num_layers = stages + more
    split = [Stage.of(num_layers, stage, stages) for stage in range(stages)]
    assert [layer for stage in split for layer in stage.layers] == list(range(num_layers))
    assert max(sizes(num_layers, stages)) - min(sizes(num_layers, stages)) <= 1
    assert len(split[-1].layers) == min(sizes(num_layers, stages))
    assert [stage.first for stage in split] == [True] + [False] * (stages - 1)
    assert [stage.last for stage in split] == [False] * (stages - 1) + [True]


def holders(parameter: str) -> list[int]:
    stages = [Stage.of(6, stage, 3) for stage in range(3)]
    held = [stage.holds(parameter, layers="layers", first=FIRST, last=LAST) for stage in stages]
    return [stage for stage, holds in enumerate(held) if holds]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("layers.0.mlp.weight", [0]),
        ("layers.3.mlp.weight", [1]),
        ("layers.5.mlp.experts.0.weight", [2]),
        ("embed.weight", [0, 2]),
        ("norm.weight", [2]),
        ("head.weight", [2]),
        ("layers.6.mlp.weight", [0, 1, 2]),
        ("layers.x.weight", [0, 1, 2]),
        ("layers", [0, 1, 2]),
        ("other.0.weight", [0, 1, 2]),
    ],
)
def test_a_parameter_is_held_by_its_stage_or_by_all(parameter: str, expected: list[int]) -> None:
    assert holders(parameter) == expected
