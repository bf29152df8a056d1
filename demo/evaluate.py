"""Measure a trained demo model: python -m demo.evaluate [folder]

The report shows how decisive its greedy answers are (the gap between the two best logits), whether bfloat16 agrees
with float32, and how many questions outside the corpus it answers right (`held-out.md`: paraphrases, and questions
to decline).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo.reading import Corpus, Turn, read_corpus, read_entries

HERE = Path(__file__).parent
PACKAGE_DATA = HERE.parent / "runtime/kvasir/hub/demo"


@dataclass(frozen=True)
class Followed:
    """The gap at each token of one expected answer; negative if greedy decoding would choose another token."""

    question: str
    gaps: list[float]

    @property
    def exact(self) -> bool:
        return min(self.gaps) > 0


def follow(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, conversations: list[list[Turn]]
) -> list[Followed]:
    """Run each conversation once along its last answer: greedy gives that answer if every gap is positive."""
    return [_follow(model, tokenizer, turns) for turns in conversations]


@torch.inference_mode()
def _follow(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, turns: list[Turn]) -> Followed:
    messages = []
    for turn in turns:
        messages += [
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": turn.answer},
        ]
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
    assert isinstance(prompt, str)
    start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    ids = tokenizer(prompt + turns[-1].answer + tokenizer.eos_token, add_special_tokens=False).input_ids
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1].float()  # [answer, V]
    expected = logits.gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
    best, second = logits.topk(2).values.unbind(1)
    return Followed(turns[-1].question, torch.where(expected == best, best - second, expected - best).tolist())


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
    remarks: list[str]

    def __str__(self) -> str:
        lines = [
            f"{self.exact} of {self.questions} questions answered word for word (bfloat16: {self.exact_bfloat16})",
            f"gap of the two best logits over {self.tokens:,} answer tokens: smallest {self.smallest_gap:.2f}, "
            f"1st percentile {self.first_percentile:.2f}, {self.below_half} below 0.5",
            f"{self.held_out_right} of {self.held_out} questions outside the corpus answered right",
            *self.remarks,
        ]
        return "\n".join(lines)


def evaluate(folder: Path, corpus: Corpus, held_out: Path) -> Report:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    conversations = list(corpus.conversations())
    unseen = [
        [Turn(question, corpus.unknown.answer if entry.answer == "unknown" else corpus.answer_of[entry.answer])]
        for entry in read_entries(held_out)
        for question in entry.questions
    ]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    taught = follow(model, tokenizer, conversations)
    tried = follow(model, tokenizer, unseen)
    low = follow(model.to(torch.bfloat16), tokenizer, conversations)
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
        remarks=[
            *(f"  not as taught: {f.question!r} (gap {min(f.gaps):.2f})" for f in (*taught, *tried) if not f.exact),
            *(f"  hardly decided: {f.question!r} (gap {min(f.gaps):.2f})" for f in taught if 0 < min(f.gaps) < 0.5),
        ],
    )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE_DATA
    print(evaluate(folder, read_corpus(), HERE / "held-out.md"))


if __name__ == "__main__":
    main()
