"""Read the corpus of the demo model.

The corpus is Markdown: `## question`, then `- another phrasing` lines, then the answer. Follow-ups, which only make
sense after another question, are under a heading `# After: question`. `unknown.json` holds templates of questions
that the model declines, `prose.md` plain paragraphs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
SYLLABLES = [
    consonant + vowel + end for consonant in "bcdfghlmnprstvw" for vowel in "aeiou" for end in ("", "n", "r", "l")
]


@dataclass(frozen=True)
class Entry:
    """An answer to some phrasings. `after`: the question that must come before (follow-ups only)."""

    questions: tuple[str, ...]
    answer: str
    after: str | None = None


@dataclass(frozen=True)
class Turn:
    question: str
    answer: str


@dataclass(frozen=True)
class Unknown:
    """Templates of questions outside the corpus, all with one answer."""

    answer: str
    templates: tuple[str, ...]
    slots: dict[str, list[str]]

    def sample(self, rng: random.Random) -> Turn:
        template = rng.choice(self.templates)
        question = re.sub(r"\{(\w+)\}", lambda slot: self._fill(rng, slot[1]), template)
        return Turn(question[0].upper() + question[1:] if rng.random() < 0.7 else question, self.answer)

    def _fill(self, rng: random.Random, slot: str) -> str:
        # Sometimes an invented word.
        if rng.random() < 0.3:
            return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
        return rng.choice(self.slots[slot])


@dataclass(frozen=True)
class Corpus:
    entries: tuple[Entry, ...]
    unknown: Unknown
    prose: tuple[str, ...]

    @cached_property
    def standalone(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.after is None]

    @cached_property
    def follow_ups(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.after is not None]

    @cached_property
    def answer_of(self) -> dict[str, str]:
        return {question: entry.answer for entry in self.standalone for question in entry.questions}

    def conversations(self) -> Iterator[list[Turn]]:
        # Each phrasing once; a follow-up comes after its question.
        for entry in self.entries:
            before = [] if entry.after is None else [Turn(entry.after, self.answer_of[entry.after])]
            for question in entry.questions:
                yield [*before, Turn(question, entry.answer)]

    def texts(self) -> Iterator[str]:
        # For the tokenizer's vocabulary.
        for entry in self.entries:
            yield from entry.questions
            yield entry.answer
        yield from self.prose
        yield self.unknown.answer


def read_corpus(folder: Path = CORPUS) -> Corpus:
    entries = [
        entry for path in sorted(folder.glob("*.md")) if path.name != "prose.md" for entry in read_entries(path)
    ]
    unknown = json.loads((folder / "unknown.json").read_text())
    prose = [" ".join(p.split()) for p in (folder / "prose.md").read_text().split("\n\n") if not p.startswith("#")]
    corpus = Corpus(tuple(entries), Unknown(**unknown), tuple(p for p in prose if p))
    _check(corpus)
    return corpus


def read_entries(path: Path) -> Iterator[Entry]:
    after: str | None = None
    for block in re.split(r"^(?=#)", path.read_text(), flags=re.MULTILINE):
        heading, _, body = block.partition("\n")
        if heading.startswith("# "):
            after = heading.removeprefix("# After: ").strip() if heading.startswith("# After: ") else None
        elif heading.startswith("## "):
            lines = body.splitlines()
            phrasings = [line[2:].strip() for line in lines if line.startswith("- ")]
            answer = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("- "))
            yield Entry((heading[3:].strip(), *phrasings), answer, after)


def _check(corpus: Corpus) -> None:
    """Reject a corpus with two answers to one question, or with a follow-up to a missing question."""
    seen: dict[tuple[str | None, str], str] = {}
    for entry in corpus.entries:
        if entry.after is not None and entry.after not in corpus.answer_of:
            raise SystemExit(f"follow-up {entry.questions[0]!r}: no question {entry.after!r} in the corpus")
        if not entry.answer:
            raise SystemExit(f"question {entry.questions[0]!r} has no answer")
        for question in entry.questions:
            key = (entry.after, re.sub(r"\W+", " ", question.lower()).strip())
            if key in seen:
                raise SystemExit(f"question {question!r} is asked twice")
            seen[key] = entry.answer
