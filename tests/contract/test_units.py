import pytest

from kvasir_contract.units import format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("12", 12), (" 7s ", 7), ("0", 0)],
)
def test_parse_duration_reads_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1d", "1h 30m", "٣s", "inf", "nan", "1e3", "1.", ".5s"])
def test_parse_duration_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write it like"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0, 0.001, 0.5, 1, 10, 100, 5400, 1.25])
def test_format_duration_is_read_again(seconds: float) -> None:
    text = format_duration(seconds)
    assert text.endswith("s")
    assert "e" not in text
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("4Gi", 2**32),
        ("1.5G", 1_500_000_000),
        ("512Mi", 2**29),
        ("4096", 4096),
        (4096, 4096),
        ("1k", 1000),
        ("0", 0),
    ],
)
def test_parse_bytes_reads_quantities(quantity: str | int, size: int) -> None:
    assert parse_bytes(quantity) == size


@pytest.mark.parametrize("quantity", ["", "Gi", "-1", "1 Gi", "1gi", "1e3", "٣Gi", "inf", -5])
def test_parse_bytes_refuses_other_texts(quantity: str | int) -> None:
    with pytest.raises(ValueError, match="is not a size: give bytes"):
        parse_bytes(quantity)
