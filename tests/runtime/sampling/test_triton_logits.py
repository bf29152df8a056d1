import numpy as np
import pytest
import torch
from torch import Tensor

from kvasir.kernels.triton.sampling.logit_kernels import (
    add_bias,
    mask_rows,
    penalise_counted,
    restore_rows,
)
from kvasir.kernels.triton.sampling.sizes import ENTRIES, PART_TOKENS
from kvasir.sampling import counted_penalties, token_masks
from kvasir.sampling import logits as logits_module
from kvasir.sampling.counted_penalties import CountedPenalties
from kvasir.sampling.logits import Allowed, Bias, Entries, LogitChanges
from kvasir.sampling.token_masks import PackedMasks, TokenMasks

CPU = torch.device("cpu")
R = 4


def logits_of(vocab: int) -> Tensor:
    logits = torch.randn(R, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    logits[0, 0] = -torch.inf
    logits[1, -1] = torch.nan
    logits[2, 0] = 0.0
    return logits


def packed(vocab: int, rows: int) -> bytes:
    """Random masks, one token and all tokens. Bits behind the vocabulary are set."""
    random = np.random.default_rng(vocab)
    words = random.integers(-(2**31), 2**31, (rows, -(-vocab // 32)))
    words[1:] = 0
    words[1:, -1] = 1 << (vocab - 1) % 32
    words[2:] = -1
    return (words % 2**32).astype("<u4").tobytes()


def entries(vocab: int, count: int, seed: int) -> Entries:
    places = torch.randperm(R * vocab, generator=torch.Generator().manual_seed(seed))[:count]
    return Entries(places // vocab, places % vocab)


def changes_of(vocab: int, count: int) -> LogitChanges:
    """`count` entries with a bias; rows 1 to 3 have penalties; row 3 has some allowed tokens only."""
    biased = entries(vocab, count, 1)
    allowed = torch.arange(0, vocab, 3)
    generator = torch.Generator().manual_seed(3)
    length = len(biased.rows)
    return LogitChanges(
        allowed=Allowed(torch.tensor([3]), Entries(torch.full_like(allowed, 3), allowed)),
        forbidden=entries(vocab, min(count, 5), 4),
        bias=Bias(biased, torch.randn(length, generator=generator)),
        penalties=None,
        counted=CountedPenalties(
            rows=torch.tensor([2, 1, 3]),
            slots=torch.tensor([4, 0, 2]),
            host_slots=np.array([4, 0, 2]),
            counts=torch.randint(-3, 9, (5, vocab), generator=generator, dtype=torch.int32).clamp_(min=0),
            params=torch.rand(5, 3, generator=generator, dtype=torch.float64) + torch.tensor([0.5, -0.5, -0.5]),
        ),
    )


def assert_same(logits: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (logits_module, counted_penalties, token_masks):
        monkeypatch.setattr(module, "has_kernels", lambda device: True)


@pytest.mark.parametrize("vocab", [1, 33, PART_TOKENS + 77])
@pytest.mark.parametrize("count", [1, ENTRIES + 3])
def test_bias_and_penalties_are_those_of_plain_torch(
    vocab: int, count: int, request: pytest.FixtureRequest
) -> None:
    changes = changes_of(vocab, count)
    logits, expected = logits_of(vocab), logits_of(vocab)
    changes.apply_(expected)
    request.getfixturevalue("with_kernels")
    changes.apply_(logits)
    assert_same(logits, expected)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, PART_TOKENS, PART_TOKENS + 77])
@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.usefixtures("with_kernels")
def test_masks_are_those_of_plain_torch(vocab: int, is_changed: bool) -> None:
    changes = changes_of(vocab, 20) if is_changed else None
    rows = [2, 0, 3]
    logits, expected = logits_of(vocab), logits_of(vocab)
    TokenMasks.unpack(packed(vocab, 3), rows, vocab, CPU).apply_(expected, changes)
    masks = token_masks.masks_for(packed(vocab, 3), rows, vocab, CPU)
    assert isinstance(masks, PackedMasks)
    masks.apply_(logits, changes)
    assert_same(logits, expected)


@pytest.mark.parametrize("token", [0, PART_TOKENS + 5])
@pytest.mark.usefixtures("with_kernels")
def test_grammar_decides_if_changes_leave_no_token(token: int) -> None:
    """Row 2 loses its only token and gets it back; row 0 has others, and its token stays forbidden."""
    vocab = PART_TOKENS + 77
    words = np.zeros((2, -(-vocab // 32)), np.uint32)
    words[:, token // 32] = 1 << token % 32
    words[1, 1] |= 2
    changes = LogitChanges(None, Entries(torch.tensor([2, 0]), torch.tensor([token, token])), None, None)
    logits = torch.ones(R, vocab)
    PackedMasks.copy(words.astype("<u4").tobytes(), [2, 0], CPU).apply_(logits, changes)
    assert (logits[2] > -torch.inf).nonzero()[:, 0].tolist() == [token]
    assert (logits[0] > -torch.inf).nonzero()[:, 0].tolist() == [33]
    assert (logits[[1, 3]] == 1).all()


def test_cpus_unpack_masks() -> None:
    assert isinstance(token_masks.masks_for(packed(50, 3), [0, 1, 2], 50, CPU), TokenMasks)


def test_other_types_are_rejected() -> None:
    logits, rows = torch.zeros(2, 50), torch.tensor([0, 1])
    words = torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="bfloat16"):
        mask_rows(logits.bfloat16(), words, rows)
    with pytest.raises(ValueError, match=r"masks of shape \[2, 1\] for 50 tokens"):
        mask_rows(logits, words[:, :1].contiguous(), rows)
    with pytest.raises(ValueError, match=r"saved logits of shape \[2, 49\]"):
        restore_rows(logits, torch.zeros(2, 49), rows)
    with pytest.raises(ValueError, match=r"added of shape \[1\]"):
        add_bias(logits, rows, rows, torch.ones(1))
    counts, params = torch.zeros(3, 50, dtype=torch.int32), torch.zeros(3, 3)
    with pytest.raises(ValueError, match="params of shape"):
        penalise_counted(logits, rows, rows, counts, params)
    with pytest.raises(ValueError, match=r"counts of shape \[3, 49\] for 50 tokens"):
        penalise_counted(logits, rows, rows, counts[:, 1:].contiguous(), params.double())
