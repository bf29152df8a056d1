"""Measure a trained demo model: python -m demo.evaluate [folder]

The report shows how decisive its greedy answers are (the gap between the two best logits), whether bfloat16 agrees
with float32, and how many questions outside the corpus it answers right (`held-out.md`: paraphrases, and questions
to decline).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo.reading import Corpus, Turn, read_corpus, read_entries
from demo.tools import Case, Offer, read_tools

HERE = Path(__file__).parent
PACKAGE_DATA = HERE.parent / "runtime/kvasir/hub/demo"


@dataclass(frozen=True)
class Followed:
    """The gap at each token of one expected answer, negative if greedy decoding would choose another token."""

    question: str
    gaps: list[float]

    @property
    def exact(self) -> bool:
        return min(self.gaps) > 0


@dataclass(frozen=True)
class Exam:
    """A conversation up to a question or the results of tools, and the next expected text."""

    messages: list[dict[str, Any]]
    expected: str
    tools: list[Any] | None = None

    @classmethod
    def of_turns(cls, turns: list[Turn]) -> Exam:
        messages: list[dict[str, Any]] = []
        for turn in turns:
            messages += [
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            ]
        return cls(messages[:-1], turns[-1].answer)


def tool_exams(cases: list[tuple[Offer, Case]]) -> dict[str, list[Exam]]:
    calls, answers, without = [], [], []
    for offer, case in cases:
        messages, tools = case.messages(), offer.tools or None
        if case.call is not None:
            calls.append(Exam(messages[:1], str(case.call), tools))
            answers.append(Exam(messages[:-1], case.answer, tools))
        else:
            without.append(Exam(messages[:1], case.answer, tools))
    return {"tool calls": calls, "answers to their results": answers, "answers without the tool": without}


def follow(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, exams: list[Exam]) -> list[Followed]:
    """Run each conversation along its last answer: greedy decoding gives it if every gap is positive."""
    return [_follow(model, tokenizer, exam) for exam in exams]


@torch.inference_mode()
def _follow(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, exam: Exam) -> Followed:
    prompt = tokenizer.apply_chat_template(
        exam.messages, tools=exam.tools, add_generation_prompt=True, tokenize=False
    )
    assert isinstance(prompt, str)
    start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    ids = tokenizer(prompt + exam.expected + tokenizer.eos_token, add_special_tokens=False).input_ids
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1].float()  # [answer, V]
    expected = logits.gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
    best, second = logits.topk(2).values.unbind(1)
    gaps = torch.where(expected == best, best - second, expected - best)
    return Followed(exam.messages[-1]["content"], gaps.tolist())


@dataclass(frozen=True)
class Report:
    questions: int
    exact: int
    exact_bfloat16: int
    smallest_gap: float
    first_percentile: float
    below_half: int
    tokens: int
    held_out: int
    held_out_right: int
    tools: list[str]
    remarks: list[str]

    def __str__(self) -> str:
        lines = [
            f"{self.exact} of {self.questions} questions answered word for word (bfloat16: {self.exact_bfloat16})",
            f"gap of the two best logits over {self.tokens:,} answer tokens: smallest {self.smallest_gap:.2f}, "
            f"1st percentile {self.first_percentile:.2f}, {self.below_half} below 0.5",
            f"{self.held_out_right} of {self.held_out} questions outside the corpus answered right",
            *self.tools,
            *self.remarks,
        ]
        return "\n".join(lines)


def evaluate(folder: Path, corpus: Corpus, held_out: Path) -> Report:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    conversations = [Exam.of_turns(turns) for turns in corpus.conversations()]
    unseen = [
        Exam(
            [{"role": "user", "content": question}],
            corpus.unknown.answer if entry.answer == "unknown" else corpus.answer_of[entry.answer],
        )
        for entry in read_entries(held_out)
        for question in entry.questions
    ]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    taught = follow(model, tokenizer, conversations)
    tried = follow(model, tokenizer, unseen)
    tools = read_tools(corpus.unknown.answer)
    lines, wrong = [], []
    for what, exams in tool_exams(tools.listed()).items():
        followed = follow(model, tokenizer, exams)
        lines.append(f"{sum(f.exact for f in followed)} of {len(followed)} {what} right")
        wrong += [f for f in followed if not f.exact]
    low = follow(model.to(torch.bfloat16), tokenizer, conversations)
    missed = [f for f in (*taught, *tried, *wrong) if not f.exact]
    gaps = torch.tensor([gap for followed in taught for gap in followed.gaps])
    return Report(
        questions=len(taught),
        exact=sum(followed.exact for followed in taught),
        exact_bfloat16=sum(followed.exact for followed in low),
        smallest_gap=gaps.min().item(),
        first_percentile=gaps.quantile(0.01).item(),
        below_half=int((gaps < 0.5).sum()),
        tokens=len(gaps),
        held_out=len(tried),
        held_out_right=sum(followed.exact for followed in tried),
        tools=lines,
        remarks=[
            *(f"  not as taught: {f.question!r} (gap {min(f.gaps):.2f})" for f in missed),
            *(f"  hardly decided: {f.question!r} (gap {min(f.gaps):.2f})" for f in taught if 0 < min(f.gaps) < 0.5),
        ],
    )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE_DATA
    print(evaluate(folder, read_corpus(), HERE / "held-out.md"))


if __name__ == "__main__":
    main()
