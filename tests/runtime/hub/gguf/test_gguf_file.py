import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvasir.hub.gguf.gguf_file import TYPES, read_header
from kvasir.hub.hub_errors import HubError
from runtime.gguf_files import finish


def write(path: Path, alignment: int = 32) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_string("a.text", "größer")
    writer.add_array("a.texts", ["x", "", "日本"])
    writer.add_array("a.numbers", [1.5, -2.0])
    writer.add_array("a.flags", [True, False])
    writer.add_int64("a.long", -(2**40))
    writer.add_bool("a.flag", True)
    writer.add_tensor("one", np.arange(7, dtype=np.float32))
    writer.add_tensor("two", np.ones((3, 64), np.float16))
    blocks = gguf.quantize(np.ones((2, 96), np.float32), gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("three", blocks, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    finish(writer)
    return path


@pytest.mark.parametrize("alignment", [32, 64])
def test_gguf_header_equals_that_of_the_gguf_package(tmp_path: Path, alignment: int) -> None:
    file = write(tmp_path / "m.gguf", alignment)
    ours, theirs = read_header(file), gguf.GGUFReader(file)
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == expected
    found = [(t.name, t.shape, t.type, t.start, t.num_bytes) for t in ours.tensors]
    assert found == [
        (t.name, tuple(map(int, t.shape[::-1])), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]


def test_gguf_types_have_the_blocks_of_the_format() -> None:
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: sizes[number] for number in TYPES} == dict(TYPES)


def test_gguf_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf")
    content = file.read_bytes()
    header = read_header(file)
    end = max(tensor.start + tensor.num_bytes for tensor in header.tensors)
    for size in (*range(0, header.num_bytes, 7), end - 1):
        file.write_bytes(content[:size])
        with pytest.raises(HubError, match=rf"{file} is not a (whole )?GGUF file") as broken:
            read_header(file)
        assert "\n" not in str(broken.value)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"GGUF" + struct.pack("<I", 1), "of version 1: only little-endian files of versions 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "would hold 1152921504606846976 entries"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04", "is not a GGUF file: it begins with"),
    ],
)
def test_gguf_file_of_another_kind_is_named(tmp_path: Path, start: bytes, said: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(start + bytes(64))
    with pytest.raises(HubError, match=said):
        read_header(file)
