import pytest

from kvasir.client.request_errors import InvalidRequest
from kvasir.client.service_limits import KnownRanks
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine


def known(*ranks: int) -> KnownRanks:
    result = KnownRanks()
    for rank in ranks:
        result.joined(RemoteEngine(f"engine-{rank}", rank, "node", EngineState.LOADING, None, 0.0))
    return result


def test_before_the_first_engine_any_rank_may_exist() -> None:
    known().check(7)


def test_a_rank_that_has_joined_passes() -> None:
    for rank in (0, 3):
        known(3, 0, 3).check(rank)


@pytest.mark.parametrize(("ranks", "named"), [((2, 0, 10), "ranks 0, 2, 10:"), ((1,), "rank 1:")])
def test_another_rank_is_refused_with_those_that_exist(ranks: tuple[int, ...], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        known(*ranks).check(4)
    assert caught.value.param == "data_parallel_rank"
