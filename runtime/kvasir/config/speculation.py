"""Speculation: how an engine guesses tokens, and how many of them a step verifies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Speculation:
    method: str
    """ngram or suffix."""
    num_speculative_tokens: int
    """Most drafts of a request in a step."""
    max_step_rows: int
    """Most tokens that a step samples or verifies: with so many running requests it has no drafts."""
    prompt_lookup_min: int
    prompt_lookup_max: int
    """Tokens of the n-grams that are looked up."""
