"""The JSON-Schema-Test-Suite (drafts 7 and 2020-12, formats included) against the grammars of its schemas.

The cases in json_schema_test_suite/ are those of the sdist of jsonschema 4.26.0, in one file for each draft. Of the
optional ones there are only those of formats. Their licence stands next to them. Run with -rP to see the counts.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from kvasir.client.request_errors import InvalidRequest
from kvasir.grammar_bounds import KEYWORDS, BadGrammar
from kvasir.grammar_bounds.keywords import FORMATS
from runtime.structured_output.guided import Guided

SUITE = Path(__file__).parent / "json_schema_test_suite"
DRAFTS: Final = {"draft7": jsonschema.Draft7Validator, "draft2020-12": jsonschema.Draft202012Validator}
SEEDS: Final = range(3)
FEWEST: Final = {"draft7": 150, "draft2020-12": 155}
"""Groups that are enforced: fewer would mean that keywords are refused that were not."""
WITHOUT_KEYWORD: Final = ("not an object", "Unsatisfiable schema", "patternProperty regexes")
"""Refusals of a schema that is true or false, that no value matches, or whose patterns overlap."""

Group = dict[str, Any]


def groups(draft: str) -> Iterator[tuple[str, Group]]:
    """Yield all but those of formats that no grammar enforces: these are annotations."""
    for name, found in json.loads((SUITE / f"{draft}.json").read_text()).items():
        for group in found:
            if isinstance(group["schema"], dict) and group["schema"].get("format", "date") not in FORMATS:
                continue
            yield f"{name}: {group['description']}", group


def guided(schema: Any) -> Guided | str:
    try:
        return Guided.of("json", schema)
    except (InvalidRequest, BadGrammar) as error:
        return str(error)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def has_other_spelling(text: str, guided: Guided) -> bool:
    """Whether a valid text is an output with its properties in another order, and with 1 for 1.0."""
    value = json.loads(text, parse_float=_whole)
    orders = [value]
    if isinstance(value, dict):
        orders += [
            dict(reversed(value.items())),
            dict(sorted(value.items())),
            {**value, "foo": value.pop("foo", 0)},
        ]
    return any(guided.takes(compact(order)) for order in orders)


def _whole(number: str) -> int | float:
    return int(float(number)) if float(number).is_integer() else float(number)


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_invalid_instance_of_the_suite_is_an_output(draft: str) -> None:
    counts: Counter[str] = Counter()
    wrong, missing = [], []
    for name, group in groups(draft):
        grammar = guided(group["schema"])
        counts["refused" if isinstance(grammar, str) else "enforced"] += 1
        if isinstance(grammar, str):
            continue
        for case in group["tests"]:
            text = compact(case["data"])
            taken = grammar.takes(text)
            counts[f"{'valid' if case['valid'] else 'invalid'}, {'taken' if taken else 'not taken'}"] += 1
            if taken and not case["valid"]:
                wrong.append(f"{name}: {text}")
            elif case["valid"] and not taken and not has_other_spelling(text, grammar):
                missing.append(f"{name}: {text}")
    print(draft, dict(counts), "valid and never written:", *missing, sep="\n")
    assert wrong == []
    assert counts["enforced"] >= FEWEST[draft]
    assert counts["valid, not taken"] < counts["valid, taken"] / 8


@pytest.mark.parametrize("draft", DRAFTS)
def test_refusals_of_the_suite_name_a_keyword(draft: str) -> None:
    for name, group in groups(draft):
        reason = guided(group["schema"])
        if isinstance(reason, str) and not any(each in reason for each in WITHOUT_KEYWORD):
            found = re.search(r"keyword '([^']+)'", reason)
            assert found is not None, (name, reason)
            assert found[1] in KEYWORDS
            assert f'"{found[1]}"' in json.dumps(group["schema"])


@pytest.mark.parametrize("draft", DRAFTS)
def test_random_outputs_for_the_suite_validate(draft: str) -> None:
    drawn = 0
    for name, group in groups(draft):
        grammar = guided(group["schema"])
        if isinstance(grammar, str):
            continue
        validator = DRAFTS[draft](group["schema"], format_checker=DRAFTS[draft].FORMAT_CHECKER)
        for seed in SEEDS:
            text = grammar.draw(seed, most=500)
            if text is not None:
                drawn += 1
                assert validator.is_valid(json.loads(text)), (name, text)
    print(draft, drawn, "outputs drawn")
