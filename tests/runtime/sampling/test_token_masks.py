import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvasir.sampling.logits import Allowed, Bias, Entries, LogitChanges, Penalties
from kvasir.sampling.token_masks import TokenMasks

CPU = torch.device("cpu")


def packed(allowed: npt.NDArray[np.bool_]) -> bytes:
    """Bit i % 32 of word i // 32, as a guide fills it."""
    masks = b""
    for row in allowed:
        words = np.zeros(-(-len(row) // 32), np.uint32)
        for token in np.flatnonzero(row):
            words[token // 32] |= np.uint32(1 << int(token) % 32)
        masks += words.astype("<u4").tobytes()
    return masks


def entries(row: int, *tokens: int) -> Entries:
    return Entries(torch.tensor([row] * len(tokens)), torch.tensor(tokens))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 1000])
def test_only_allowed_tokens_of_masked_rows_remain(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    allowed = random.random((2, vocab_size)) < 0.5
    before = torch.rand((3, vocab_size))
    logits = before.clone()
    TokenMasks.unpack(packed(allowed), [2, 0], vocab_size, CPU).apply_(logits, None)
    assert torch.equal(logits[1], before[1])
    for row, mask in zip([2, 0], torch.from_numpy(allowed), strict=True):
        assert torch.equal(logits[row][mask], before[row][mask])
        assert torch.isneginf(logits[row][~mask]).all()


def test_other_rules_choose_within_the_mask() -> None:
    allowed = np.zeros((1, 8), np.bool_)
    allowed[0, [1, 2, 3, 4]] = True
    logits = torch.ones((2, 8))
    one = torch.tensor([2.0])
    changes = LogitChanges(
        allowed=Allowed(torch.tensor([0]), entries(0, 2, 3, 4, 7)),
        forbidden=entries(0, 4),
        bias=Bias(entries(0, 7), one),  # the mask excludes it
        penalties=Penalties(entries(0, 2), one, one),
    )
    TokenMasks.unpack(packed(allowed), [0], 8, CPU).apply_(logits, changes)
    inf = -torch.inf
    assert logits[0].tolist() == [inf, inf, 1 / 2 - 2, 1, inf, inf, inf, inf]
    assert logits[1].tolist() == [1] * 8


def test_grammar_decides_if_other_rules_leave_no_token() -> None:
    allowed = np.zeros((2, 8), np.bool_)
    allowed[:, [1, 2]] = True
    logits = torch.arange(16.0).reshape(2, 8)
    changes = LogitChanges(None, entries(0, 1, 2), None, None)
    TokenMasks.unpack(packed(allowed), [0, 1], 8, CPU).apply_(logits, changes)
    assert torch.isfinite(logits).nonzero().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert logits[0, 1:3].tolist() == [1, 2]
