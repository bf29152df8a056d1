from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.local.gpus import take_gpus, visible_gpus


def test_devices_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]


@pytest.mark.parametrize(("given", "visible"), [("2,5", ["2", "5"]), ("", []), ("-1", []), ("GPU-a", ["GPU-a"])])
def test_cuda_visible_devices_decides_where_it_is_set(given: str, visible: list[str], tmp_path: Path) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}, tmp_path) == visible


def test_each_engine_takes_one() -> None:
    assert take_gpus(2, "", gpus=["4", "5", "6"]) == ["4", "5"]


@pytest.mark.parametrize(
    ("gpus", "count", "message"),
    [
        ([], 1, "there is no GPU here, and 1 engine needs one: buy"),
        (["0"], 2, "there is 1 GPU here, and 2 engines need"),
    ],
)
def test_too_few_are_told(gpus: list[str], count: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        take_gpus(count, "buy some", gpus=gpus)
