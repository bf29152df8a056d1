"""Durations and quantities: the parser takes what the schema's patterns let through."""

import pytest

from kvasir.config import options
from kvasir_operator.units import parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300s", 300), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("1m0.5s", 60.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert options.parse_duration(text) == seconds, "options and manifests mean the same"


@pytest.mark.parametrize("text", ["", "5", "5 s", "5d", "s", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("quantity", "size"),
    [("4Gi", 4 << 30), ("1.5G", 1_500_000_000), (4096, 4096), ("64Mi", 64 << 20), ("2k", 2000)],
)
def test_sizes(quantity: str | int, size: int) -> None:
    assert parse_bytes(quantity) == size
    assert options.parse_size(str(quantity)) == size, "options and manifests mean the same"


@pytest.mark.parametrize("quantity", ["", "Gi", "1m", "-1", "1 Gi"])
def test_what_is_no_size_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(quantity)
