import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvasir.hub.hub_errors import HubError
from kvasir.hub.weights_identity import SAMPLE_BYTES, SAMPLES, weights_identity


def save(folder: Path, seed: int = 0, scale: float = 1.0, name: str = "w", **more: int) -> Path:
    """Write a model of two tensors: one of 2 MB, and a small one."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    tensors = {name: scale * draw.standard_normal((512, 1024), np.float32), "norm": np.ones(8, np.float32)}
    tensors |= {key: np.ones(size, np.float32) for key, size in more.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_identity_is_of_the_content_alone(tmp_path: Path) -> None:
    """Nodes have copies of their own, with other times."""
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    os.utime(second / "model.safetensors", (1, 1))
    assert weights_identity(first) == weights_identity(second)
    assert len(weights_identity(first)) == 32


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"scale": 1.0000002}, {"name": "v"}, {"more": 4}],
    ids=["other", "scaled", "name", "size"],
)
def test_identity_changes_with_the_weights(tmp_path: Path, change: dict[str, Any]) -> None:
    assert weights_identity(save(tmp_path / "a")) != weights_identity(save(tmp_path / "b", **change))


@pytest.mark.parametrize("place", [0, 100, -1])
def test_identity_of_a_small_model_covers_each_byte(tmp_path: Path, place: int) -> None:
    folder = save(tmp_path)
    before = weights_identity(folder)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[place if place < 0 else len(content) // 2 + place] ^= 1
    file.write_bytes(content)
    assert weights_identity(folder) != before


def test_identity_reads_a_bounded_part_of_a_large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 20 GB: reading it all would take a minute."""
    file = save(tmp_path) / "model.safetensors"
    size = 20 * 10**9
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, offset: int) -> bytes:
        read.append(count)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    weights_identity(tmp_path)
    assert sum(read) < 2 * SAMPLES * SAMPLE_BYTES


def test_identity_of_missing_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="no weights"):
        weights_identity(tmp_path)
