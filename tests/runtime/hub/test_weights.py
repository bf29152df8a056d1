import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.hub.hub_errors import HubError
from kvasir.hub.safetensors_file import check_safetensors
from kvasir.hub.weights import tensor_bytes, weight_files

INDEX = "model.safetensors.index.json"
F32_2X2 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def safetensors(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


WHOLE = safetensors({"__metadata__": {"format": "pt"}, "a": F32_2X2}, bytes(16))


def shards(path: Path, *names: str, index: bool = True) -> None:
    for name in names:
        (path / name).write_bytes(WHOLE)
    if index:
        (path / INDEX).write_text(json.dumps({"weight_map": {f"tensor.{name}": name for name in names}}))


def test_files_of_the_reference_library_are_whole(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {
        "a": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7, dtype=torch.int8),
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0, 4),
        "mask": torch.ones(9, dtype=torch.bool),
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    files = weight_files(tmp_path)
    assert files == [tmp_path / "model.safetensors"]
    assert tensor_bytes(files) == 3 * 5 * 2 + 7 + 4 + 9


def test_single_file_wins_over_shards(tmp_path: Path) -> None:
    shards(tmp_path, "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    shards(tmp_path, *names)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    files = weight_files(tmp_path)
    assert files == [tmp_path / name for name in names]
    assert tensor_bytes(files) == 32


def test_missing_shards_are_named(tmp_path: Path) -> None:
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    shards(tmp_path, *names)
    (tmp_path / names[1]).unlink()
    with pytest.raises(HubError, match=rf"lacks 1 of 3 weight files \({names[1]}\): download the model again"):
        weight_files(tmp_path)


def test_shards_without_an_index_are_counted_by_their_names(tmp_path: Path) -> None:
    shards(tmp_path, "model-00001-of-00002.safetensors", index=False)
    with pytest.raises(HubError, match=r"lacks 1 of 2 weight files \(model-00002-of-00002.safetensors\)"):
        weight_files(tmp_path)
    shards(tmp_path, "model-00002-of-00002.safetensors", "consolidated.safetensors", index=False)
    assert [file.name for file in weight_files(tmp_path)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "weight_map, the file of each tensor, is missing or empty"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "which is not a file of this directory"),
        ('{"weight_map": {"a": [1]}}', "which is not a file of this directory"),
    ],
)
def test_broken_index_is_named(tmp_path: Path, index: str, said: str) -> None:
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(HubError, match=rf"{tmp_path}/{INDEX}.*{said}"):
        weight_files(tmp_path)


def test_directory_without_weights_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(HubError, match=r"neither \*.safetensors nor pytorch_model.bin nor \*.gguf"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header too small"),
        (b"<!DOCTYPE html><html>Not Found</html>", "header too large"),
        (safetensors({"a": F32_2X2}, bytes(15)), "not fully covered"),
        (safetensors({"a": F32_2X2}, bytes(17)), "not fully covered"),
        (safetensors({"a": F32_2X2 | {"dtype": "Q4"}}, bytes(16)), "unknown variant `Q4`"),
        (safetensors({"a": F32_2X2 | {"shape": [2, 3]}}, bytes(16)), "invalid shape, data type, or offset"),
        (safetensors({"a": F32_2X2, "b": F32_2X2}, bytes(16)), "invalid offset for tensor"),
    ],
)
def test_broken_file_is_named_with_what_is_wrong(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(HubError) as broken:
        weight_files(tmp_path)
    message = str(broken.value)
    assert message.startswith(f"{file} is not a whole safetensors file: ")
    assert said in message
    assert message.endswith("download it again")


@given(position=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255), cut=st.integers(0, len(WHOLE)))
def test_a_damaged_file_has_its_size_or_is_a_hub_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    damaged = bytearray(WHOLE)
    damaged[position] = value
    file.write_bytes(damaged[:cut])
    with suppress(HubError):
        assert check_safetensors(file) == 16


def test_a_git_lfs_pointer_is_told_with_what_brings_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n")
    with pytest.raises(HubError, match="is a Git LFS pointer, not the file itself: run `git lfs pull`"):
        weight_files(tmp_path)
