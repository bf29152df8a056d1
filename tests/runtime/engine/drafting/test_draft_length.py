from kvasir.engine.drafting.adaptive_drafter import PAUSE_TOKENS, DraftLength


def test_draft_length_ends_after_four_rejections() -> None:
    length = DraftLength(4)
    for tokens in (10, 11, 12, 13):
        assert length.at(tokens) > 0
        length.verified(4, 0, tokens)
    assert length.at(14) == 0


def rejected(length: DraftLength, num_tokens: int) -> int:
    """Reject all drafts of a request until it has none; return its number of tokens then."""
    while length.at(num_tokens):
        length.verified(length.at(num_tokens), 0, num_tokens)
        num_tokens += 1
    return num_tokens


def next_try(length: DraftLength, num_tokens: int) -> int:
    while not length.at(num_tokens):
        num_tokens += 1
    return num_tokens


def test_draft_length_tries_again_more_and_more_seldom() -> None:
    length, num_tokens, pauses = DraftLength(4), 100, []
    for _ in range(7):
        off = rejected(length, num_tokens)
        num_tokens = next_try(length, off)
        assert length.at(num_tokens) == 1
        pauses.append(num_tokens - off + 1)
    assert pauses == [16, 32, 64, 128, 256, 256, 256]


def test_draft_length_recovers_by_one_right_draft() -> None:
    length = DraftLength(4)
    num_tokens = next_try(length, rejected(length, 100))
    length.verified(1, 1, num_tokens)
    assert length.at(num_tokens + 2) == 3
    assert next_try(length, rejected(length, 200)) < 200 + 2 * PAUSE_TOKENS


def test_draft_length_follows_what_is_accepted() -> None:
    length = DraftLength(5)
    assert length.at(1) == 5
    length.verified(5, 3, 1)
    length.verified(4, 2, 1)
    assert length.at(1) == 3
    length.verified(3, 3, 1)
    assert length.at(1) == 5
