"""What is done with log probabilities between an engine's output and an answer: join, cut, compare."""

from kvasir.link.protocol import Logprobs


def joined(first: Logprobs | None, more: Logprobs) -> Logprobs:
    """Both in one; `first` grows, and must belong to the caller."""
    if first is None:
        return Logprobs(more.token[:], more.rank[:], more.top_ids[:], more.top[:])
    first.token.extend(more.token)
    first.rank.extend(more.rank)
    first.top_ids.extend(more.top_ids)
    first.top.extend(more.top)
    return first


def first_of(logprobs: Logprobs, count: int) -> Logprobs:
    """Those of the first tokens."""
    return Logprobs(logprobs.token[:count], logprobs.rank[:count], logprobs.top_ids[:count], logprobs.top[:count])


def mean(logprobs: Logprobs | None) -> float:
    """Log probability per token; of no token that of a certain one."""
    if logprobs is None or not logprobs.token:
        return 0.0
    return sum(logprobs.token) / len(logprobs.token)
