"""The page docs/structured-output.md against the engine's own facts."""

import re

from tools.keyword_table import PAGE, replaced, table

from kvasir.client.input import grammar_source, structural_tags
from kvasir.engine.grammar import grammars, trial_messages
from kvasir.grammar_bounds import KEYWORDS, limits


def test_the_page_has_the_table_of_the_engine() -> None:
    page = PAGE.read_text()
    assert table() in page, "run python -m tools.keyword_table"
    assert replaced(page) == page


def test_the_table_has_every_keyword_once() -> None:
    assert [table().count(f"`{name}`") for name in KEYWORDS] == [1] * len(KEYWORDS)


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    [row] = re.findall(r"^\| a schema \| (.*) \|$", page, re.MULTILINE)
    assert row == f"{limits.MAX_SCHEMA_BYTES >> 10} KiB, {limits.MAX_NESTED_LEVELS} levels"
    for text in (
        f"{grammar_source.MAX_CHOICES:,} texts, {limits.MAX_GRAMMAR_BYTES >> 10} KiB",
        f"| another grammar | {limits.MAX_GRAMMAR_BYTES >> 10} KiB, and ",
        f" {limits.MAX_GRAMMAR_SCHEMAS_BYTES >> 10} KiB of schemas",
        f"{structural_tags.MAX_FORMATS:,} formats, {structural_tags.MAX_DEPTH} levels",
        f"{structural_tags.MAX_TEXT_CHARACTERS >> 10} KiB of text",
        f"{trial_messages.MAX_TRIAL_CPU_SECONDS} s of CPU time, {trial_messages.MAX_TRIAL_SECONDS:.0f} s on a busy",
        f"and {trial_messages.MAX_TRIAL_BYTES >> 20} MiB",
        f"the last {grammars.MAX_CACHED_GRAMMARS:,}, up to about ",
        f" {grammars.MAX_CACHED_BYTES >> 20} MiB",
    ):
        assert text in page
