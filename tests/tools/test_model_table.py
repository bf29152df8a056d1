"""The tables of docs/models.md and docs/checkpoints.md against their sources."""

import tomllib

from tools.model_table import (
    CHECKPOINTS,
    CHECKPOINTS_PAGE,
    PAGE,
    checkpoint_table,
    replaced,
    replaced_checkpoints,
    table,
)

from kvasir.models.registry import ARCHITECTURES


def test_the_page_has_the_table_of_the_registry() -> None:
    page = PAGE.read_text()
    assert table() in page, "run python -m tools.model_table"
    assert replaced(page) == page


def test_the_table_has_every_architecture_once() -> None:
    assert [table().count(f"`{name}`") for name in ARCHITECTURES] == [1] * len(ARCHITECTURES)


def test_the_page_has_the_table_of_checkpoints() -> None:
    page = CHECKPOINTS_PAGE.read_text()
    assert checkpoint_table() in page, "run python -m tools.model_table"
    assert replaced_checkpoints(page) == page


def test_sixty_checkpoints_are_listed_once_each() -> None:
    names = {entry["name"] for entry in tomllib.loads(CHECKPOINTS.read_text())["checkpoint"]}
    assert len(names) == 60
