from kvasir.engine.scheduling.step_drafts import DraftCounts
from kvasir.link.protocol import DraftStats


def test_draft_counts_have_accepted_tokens_by_place() -> None:
    counts = DraftCounts()
    for drafted, accepted in ((3, 2), (1, 0), (2, 2), (4, 1)):
        counts.verified(drafted, accepted)
    assert counts.stats() == DraftStats(4, 10, (3, 2, 0, 0))
