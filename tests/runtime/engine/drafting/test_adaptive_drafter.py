from kvasir.config.speculation import Speculation
from kvasir.engine.drafting.adaptive_drafter import AdaptiveDrafter
from kvasir.engine.drafting.make_drafter import make_drafter
from kvasir.engine.drafting.ngram_guesses import NgramGuesses
from runtime.engine.drafting.texts import request_with


def test_adaptive_drafter_stops_after_rejections() -> None:
    drafter, request = AdaptiveDrafter(NgramGuesses(1, 2), 4), request_with([1, 2, 3, 4, 5, 6, 1])
    assert list(drafter.propose(request, 9)) == [2, 3, 4, 5]
    assert list(drafter.propose(request, 2)) == [2, 3]
    for _ in range(4):
        drafter.verified(request, 2, 0)
    assert list(drafter.propose(request, 9)) == []
    assert not drafter.wants(request)


def test_adaptive_drafter_waits_where_the_text_is_known() -> None:
    drafter = AdaptiveDrafter(NgramGuesses(1, 2), 4)
    assert drafter.wants(request_with([1, 2, 3, 1]))
    assert not drafter.wants(request_with([1, 2, 3, 4]))


def test_adaptive_drafter_forgets_ended_requests() -> None:
    drafter, request = AdaptiveDrafter(NgramGuesses(1, 2), 4), request_with([1, 2, 1])
    drafter.propose(request, 1)
    drafter.ended(request)
    drafter.verified(request, 1, 1)
    drafter.ended(request)
    assert not drafter._lengths


def test_make_drafter_makes_each_method() -> None:
    prompt, output = [7], [1, 2, 3, 4, 5, 6]
    for method, expected in (("ngram", []), ("suffix", [4, 5, 6])):
        drafter = make_drafter(Speculation(method, 4, 16, 2, 3))
        drafter.ended(request_with(prompt, output))
        assert list(drafter.propose(request_with([1, 2, 3]), 9)) == expected
