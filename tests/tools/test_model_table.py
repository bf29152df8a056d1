"""The table of architectures in docs/models.md against the registry."""

from tools.model_table import PAGE, replaced, table

from kvasir.models.registry import ARCHITECTURES


def test_the_page_has_the_table_of_the_registry() -> None:
    page = PAGE.read_text()
    assert table() in page, "run python -m tools.model_table"
    assert replaced(page) == page


def test_the_table_has_every_architecture_once() -> None:
    assert [table().count(f"`{name}`") for name in ARCHITECTURES] == [1] * len(ARCHITECTURES)
