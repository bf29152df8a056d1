"""The demo model's corpus claims no feature that Kvasir does not have, and names each of them as missing.

These features are in demo/not-yet.json, and the README lists the same ones.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus_texts import CORPUS, FEATURES, texts
from demo.reading import Entry, read_entries

ROOT = Path(__file__).resolve().parents[2]

DENIES = re.compile(r"\b(not|no|none|cannot|would|without)\b", re.IGNORECASE)
GENERAL = ("kubernetes.md", "serving.md")
"""Files about the field: their sentences are about Kvasir only if they name it."""


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.?!]) ", text)


def about_kvasir() -> Iterator[str]:
    """Return every sentence about Kvasir that the model learns to write."""
    general = {entry.answer for name in GENERAL for entry in read_entries(ROOT / "demo/corpus" / name)}
    for text in texts():
        yield from (sentence for sentence in sentences(text) if text not in general or "Kvasir" in sentence)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature["feature"])
def test_a_missing_feature_is_never_claimed(feature: dict[str, Any]) -> None:
    topic = re.compile(feature["topic"], re.IGNORECASE)
    claimed = [s for s in about_kvasir() if topic.search(s) and not DENIES.search(s)]
    claims = [s for s in about_kvasir() for claim in feature["claims"] if re.search(claim, s, re.IGNORECASE)]
    assert claimed + claims == []


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature["feature"])
def test_the_model_can_answer_that_a_feature_is_missing(feature: dict[str, Any]) -> None:
    topic = re.compile(feature["topic"], re.IGNORECASE)
    asked = [e for e in CORPUS.entries if any(map(topic.search, [e.after or "", *e.questions]))]
    answers = [e.answer for e in asked if re.search(r"\byet\b", e.answer)]
    assert answers, f"no question of the corpus is about {feature['feature']} and has an answer with the word 'yet'"


def test_an_answer_with_the_word_yet_is_about_a_missing_feature() -> None:
    topics = [re.compile(feature["topic"], re.IGNORECASE) for feature in FEATURES]
    answers = [e for e in CORPUS.entries if re.search(r"\byet\b", e.answer)]
    assert [e.answer for e in answers if not any(topic.search(whole(e)) for topic in topics)] == []


def whole(entry: Entry) -> str:
    return " ".join([entry.after or "", *entry.questions, entry.answer])


def test_the_readme_lists_the_same_missing_features() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    listed = re.search(r"Not implemented yet: (.*?)\.", text)
    assert listed is not None
    assert listed[1].split(", ") == [feature["feature"] for feature in FEATURES]
