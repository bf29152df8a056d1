import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec
import pytest
import torch

from kvasir.kernels.triton import device_support
from kvasir.kernels.triton.device_tiles import DEFAULT, DeviceTiles, device_entries, device_tiles
from kvasir.kernels.triton.row_tiling import WIDE_INPUTS, RowTile, row_tile
from kvasir.kernels.triton.tiling import (
    AttentionTile,
    PagedShape,
    StepKind,
    attention_tile,
    decodes_kind,
)

H200: Final = "NVIDIA H200"
SHARED_BYTES: Final = MappingProxyType(
    {
        H200: 227 * 1024,
        "NVIDIA H100 80GB HBM3": 227 * 1024,
        "NVIDIA A100-SXM4-80GB": 163 * 1024,
        "NVIDIA B200": 227 * 1024,
        "NVIDIA L4": 99 * 1024,
        "NVIDIA GeForce RTX 4090": 99 * 1024,
    }
)
"""Limit of a program, from CUDA's programming guide."""
USUAL: Final = PagedShape(heads=32, kv_heads=8, head_dim=128, block_size=16)
UNUSUAL: Final = (
    (USUAL, 4, 32),
    (USUAL, 2, 64),
    (PagedShape(heads=8, kv_heads=4, head_dim=256, block_size=16), 2, 32),
)
"""Shape, bytes of a number, threads of a warp."""


def test_each_device_has_its_own_tiles() -> None:
    entries = device_entries()
    assert entries.keys() == {DEFAULT, *SHARED_BYTES}
    for name, shared_bytes in SHARED_BYTES.items():
        assert device_tiles(name, shared_bytes) is entries[name]
    assert entries[H200].measured is not None


@pytest.mark.parametrize("name", device_entries())
def test_sizes_are_powers_of_two(name: str) -> None:
    """As Triton needs them. A matrix product has at least 16 rows, columns and depth."""
    entry = device_entries()[name]
    attention, rows = entry.attention, entry.row_product
    tiles = (attention.few.of_rows(16), attention.decode.of_rows(16), attention.prefill)
    for tile in tiles:
        assert {tile.rows, tile.keys} <= {16, 32, 64, 128, 256}
        assert tile.num_warps in (1, 2, 4, 8)
        assert tile.num_stages >= 1
    for each in (rows.norm, rows.add, rows.gate_wide, rows.gate):
        assert each.outputs in (1, 2, 4, 8, 16)
        assert each.inputs in (64, 128, 256, 512, 1024, 2048)
        assert each.num_warps in (1, 2, 4, 8)
        assert each.num_stages >= 1


def test_another_or_smaller_device_has_the_default_tiles() -> None:
    default = device_entries()[DEFAULT]
    assert device_tiles("NVIDIA H200 NVL", SHARED_BYTES[H200]) is default
    assert device_tiles(H200, 99 * 1024) is default
    assert default.measured is None


def test_an_unknown_field_is_refused() -> None:
    entry = msgspec.json.encode(device_entries()[DEFAULT])
    assert msgspec.json.decode(entry, type=DeviceTiles) == device_entries()[DEFAULT]
    with pytest.raises(msgspec.ValidationError, match="warps"):
        msgspec.json.decode(entry.replace(b'"measured"', b'"warps":1,"measured"'), type=DeviceTiles)
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.json.decode(entry.replace(b'"few":[64,', b'"few":[64,1,'), type=DeviceTiles)


def test_few_decodes_have_a_tile_of_their_own() -> None:
    tiles, programs = device_entries()[H200].attention, 4 * 132
    assert decodes_kind(16, USUAL.kv_heads, programs) is StepKind.FEW_DECODES
    assert decodes_kind(17, USUAL.kv_heads, programs) is StepKind.DECODES
    found = [attention_tile(USUAL, 2, kind, tiles, warp_size=32) for kind in StepKind]
    assert found == [AttentionTile(16, 128, 4, 3), AttentionTile(16, 32, 1, 3), AttentionTile(128, 64, 4, 3)]


@pytest.mark.parametrize(("shape", "dtype_bytes", "warp_size"), UNUSUAL)
@pytest.mark.parametrize("kind", list(StepKind))
def test_the_tiles_of_a_device_are_for_usual_heads(
    kind: StepKind, shape: PagedShape, dtype_bytes: int, warp_size: int
) -> None:
    found = [
        attention_tile(shape, dtype_bytes, kind, device_entries()[name].attention, warp_size=warp_size)
        for name in (DEFAULT, H200)
    ]
    assert found[0] == found[1]


def test_many_query_heads_of_a_kv_head_have_no_narrow_tile() -> None:
    """A program of one warp would have too few registers."""
    shape = PagedShape(heads=64, kv_heads=1, head_dim=128, block_size=16)
    tile = attention_tile(shape, 2, StepKind.DECODES, device_entries()[H200].attention, warp_size=32)
    assert tile == AttentionTile(64, 64, 8, 2)


def test_products_have_tiles_by_form_and_size() -> None:
    tiles = device_entries()[H200].row_product
    assert row_tile(tiles, 4096, gated=False, adds=False) == RowTile(4, 256, 1, 3)
    assert row_tile(tiles, 4096, gated=False, adds=True) == RowTile(8, 256, 4, 5)
    assert row_tile(tiles, WIDE_INPUTS, gated=True, adds=False) == RowTile(4, 1024, 4, 3)
    assert row_tile(tiles, WIDE_INPUTS - 16, gated=True, adds=False) == RowTile(8, 512, 4, 1)


@dataclass
class Properties:
    shared_memory_per_block: int = 48 * 1024
    shared_memory_per_block_optin: int = 227 * 1024


def test_one_line_states_that_tiles_are_not_tuned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = {0: "NVIDIA H100 80GB HBM3", 1: H200, 2: "NVIDIA H100 80GB HBM3"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    device_support.tiles_for.cache_clear()
    device_support._log_untuned.cache_clear()
    with caplog.at_level(logging.INFO):
        tiles = [device_support.tiles_for(torch.device("cuda", index)) for index in names]
    assert tiles == [device_entries()[name] for name in names.values()]
    assert caplog.text.count("not tuned for NVIDIA H100") == 1
    assert "H200" not in caplog.text
    device_support.tiles_for.cache_clear()
