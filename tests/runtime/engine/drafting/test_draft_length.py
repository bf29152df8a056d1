from kvasir.engine.drafting.draft_length import PAUSE_TOKENS, DraftLength


def test_draft_length_ends_after_four_rejections() -> None:
    length = DraftLength(4)
    for tokens in (10, 11, 12, 13):
        assert length.at(tokens) > 0
        length.verified(4, 0, tokens)
    assert length.at(14) == 0


def test_draft_length_tries_again_seldom_and_recovers() -> None:
    length = DraftLength(4)
    for _ in range(6):
        length.verified(1, 0, 100)
    tries = [tokens for tokens in range(100, 100 + PAUSE_TOKENS + 1) if length.at(tokens)]
    assert tries == [100 + PAUSE_TOKENS]
    length.verified(1, 0, tries[0] + 1)
    assert length.at(tries[0] + 2) == 0
    length.verified(1, 1, tries[0] + PAUSE_TOKENS + 1)
    assert length.at(tries[0] + PAUSE_TOKENS + 2) == 3


def test_draft_length_follows_what_is_accepted() -> None:
    length = DraftLength(5)
    assert length.at(1) == 5
    length.verified(5, 3, 1)
    length.verified(4, 2, 1)
    assert length.at(1) == 3
    length.verified(3, 3, 1)
    assert length.at(1) == 5
