"""Operations on log probabilities."""

from kvasir.link.protocol import Logprobs


def joined(first: Logprobs | None, more: Logprobs) -> Logprobs:
    """Append `more` to `first`, which the caller must own."""
    if first is None:
        return Logprobs(more.token[:], more.rank[:], more.top_ids[:], more.top[:])
    first.token.extend(more.token)
    first.rank.extend(more.rank)
    first.top_ids.extend(more.top_ids)
    first.top.extend(more.top)
    return first


def first_of(logprobs: Logprobs, count: int) -> Logprobs:
    return Logprobs(logprobs.token[:count], logprobs.rank[:count], logprobs.top_ids[:count], logprobs.top[:count])


def mean(logprobs: Logprobs | None) -> float:
    """Return the mean log probability per token; 0 without tokens."""
    if logprobs is None or not logprobs.token:
        return 0.0
    return sum(logprobs.token) / len(logprobs.token)
