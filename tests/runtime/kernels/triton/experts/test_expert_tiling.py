import pytest

from kvasir.kernels.triton.experts.expert_tiling import TILE_ROWS, DeviceLimits, product_tile, tile_rows

DEVICES = {
    "A100": DeviceLimits(163 * 1024, 32),
    "H100, H200, B200": DeviceLimits(227 * 1024, 32),
    "L4, RTX 4090": DeviceLimits(99 * 1024, 32),
    "MI300X": DeviceLimits(64 * 1024, 64),
}


@pytest.mark.parametrize("limits", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("dtype_bytes", [2, 4])
def test_tiles_fit_the_shared_memory(dtype_bytes: int, limits: DeviceLimits) -> None:
    for rows in TILE_ROWS if dtype_bytes == 2 else TILE_ROWS[:1]:
        for gated in (True, False):
            tile = product_tile(rows, dtype_bytes, limits, gated=gated)
            loaded = rows + tile.columns * (2 if gated else 1)
            assert tile.num_stages >= 2
            assert tile.num_stages * loaded * tile.depth * dtype_bytes <= limits.shared_bytes


def test_long_prompts_have_wide_tiles_if_they_fit() -> None:
    found = {name: product_tile(128, 2, limits, gated=False) for name, limits in DEVICES.items()}
    assert {name: (tile.columns, tile.num_stages) for name, tile in found.items()} == {
        "A100": (128, 4),
        "H100, H200, B200": (256, 4),
        "L4, RTX 4090": (128, 3),
        "MI300X": (128, 2),
    }


def test_inputs_at_a_time_depend_on_the_type_alone() -> None:
    """Otherwise the sums of a decode and of a prefill would differ."""
    for dtype_bytes, depth in ((2, 64), (4, 32)):
        for limits in DEVICES.values():
            for rows in TILE_ROWS:
                for gated in (True, False):
                    assert product_tile(rows, dtype_bytes, limits, gated=gated).depth == depth


def test_blocks_have_the_rows_of_a_mean_expert() -> None:
    assert tile_rows(8, 128, 2) == 16
    assert tile_rows(256 * 8, 128, 2) == 16
    assert tile_rows(257 * 8, 128, 2) == 64
    assert tile_rows(8192 * 8, 128, 2) == 128
    assert tile_rows(8192 * 8, 128, 4) == 16
