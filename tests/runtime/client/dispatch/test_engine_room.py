import pytest

from kvasir.client.dispatch.engine_load import EngineLoad, EngineRoom
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import EngineStats, Ready

STEP = 1000
READY = Ready(block_size=16, num_blocks=1000, max_model_len=100_000, max_num_seqs=32, max_num_batched_tokens=STEP)


class Case:
    def __init__(self, ready: Ready = READY) -> None:
        self.load = EngineLoad()
        self.engine = RemoteEngine("e", 0, "node", EngineState.READY, None, 0.0, capacity=ready)
        self.room = EngineRoom(lambda _: self.load)
        self.sent = 0

    def fill(self, tokens: int = 1, most: int = 1000) -> int:
        """Send requests while there is room; return how many."""
        before = self.sent
        while self.sent - before < most and self.room.has_room(self.engine, tokens):
            self.load.sent(f"r{self.sent}", tokens, tokens, 0.0)
            self.sent += 1
        return self.sent - before

    def report(self, waiting: int, running: int, *, step: int = 1, blocks: int = 0, unfinished: int = 0) -> None:
        self.engine.stats = EngineStats(waiting, running, blocks, step, unfinished_tokens=unfinished)
        self.load.reported(self.engine.stats, 0.0)

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.load.begun(f"r{number}", 0, None, 0.0)


def test_an_idle_engine_gets_its_rows_and_an_eighth_more() -> None:
    case = Case()
    assert case.fill() == 36
    case.load.left("r0", 0.0)
    assert case.fill() == 1


def test_an_engine_with_few_rows_gets_two_more() -> None:
    assert Case(Ready(16, 1000, 1000, 4, max_num_batched_tokens=STEP)).fill() == 6


def test_prefills_fill_two_steps() -> None:
    case = Case()
    assert case.fill(400) == 5
    case.begin(0, 1)
    case.report(waiting=2, running=3, unfinished=200)
    assert case.fill(400) == 2


def test_prompt_of_over_two_steps_goes_to_an_idle_engine() -> None:
    case = Case()
    assert case.fill(50_000) == 1
    assert case.fill(10) == 0


def test_rest_of_a_long_prompt_counts_as_its_chunks_are_computed() -> None:
    case = Case()
    case.fill(50_000, most=1)
    for step, rest in enumerate((49_000, 48_000, 2_500)):
        case.report(waiting=0, running=1, step=step, unfinished=rest)
        assert case.fill(10) == 0
    case.report(waiting=0, running=1, step=9, unfinished=1_500)
    assert case.fill(100) == 5


def test_a_report_does_not_hide_requests_that_are_on_their_way() -> None:
    case = Case()
    case.report(waiting=0, running=0)
    case.fill(500)
    case.report(waiting=0, running=0, step=2)  # it had not read them
    assert case.fill(500) == 0


@pytest.mark.parametrize("tokens", [0, STEP])
def test_without_announced_steps_only_rows_count(tokens: int) -> None:
    case = Case(Ready(16, 1000, 1000, 8, max_num_batched_tokens=tokens))
    assert case.fill(900) == (3 if tokens else 10)


def test_without_kv_blocks_the_rows_are_those_that_run() -> None:
    case = Case()
    case.fill(most=10)
    case.begin(*range(8))
    case.report(waiting=2, running=8, blocks=980)
    assert case.fill() == 2
    case.report(waiting=4, running=8, blocks=980)
    assert case.fill() == 0
    case.report(waiting=4, running=8, blocks=100)
    assert case.fill() == 24


def test_each_frontend_may_have_a_request_in_a_full_engine() -> None:
    case = Case()
    case.report(waiting=30, running=32)
    assert case.fill() == 1
    case.begin(0)
    case.report(waiting=30, running=32, step=2)
    assert case.fill() == 1


def test_engine_that_refused_is_asked_when_its_queue_is_shorter() -> None:
    case = Case()
    case.report(waiting=3, running=1, step=5)
    case.load.sent("own", 1, 1, 0.0)
    case.room.refused(case.engine)
    assert case.room.is_full(case.engine)
    for waiting, step, is_full in ((3, 6, True), (2, 5, True), (4, 7, True), (2, 8, False)):
        case.report(waiting, 1, step=step)
        case.room.reported(case.engine, is_step=True)
        assert case.room.is_full(case.engine) == is_full


def test_an_engine_that_refused_is_asked_again_after_a_heartbeat() -> None:
    case = Case()
    case.report(waiting=3, running=1)
    case.room.refused(case.engine)
    case.room.reported(case.engine, is_step=False)
    assert not case.room.is_full(case.engine)


def test_a_lost_engine_is_forgotten() -> None:
    case = Case()
    case.room.refused(case.engine)
    case.room.forget("e")
    assert not case.room.is_full(case.engine)


def test_request_may_wait_for_its_prefix_though_another_has_room() -> None:
    loads = {name: EngineLoad() for name in "ab"}
    engines = [RemoteEngine(name, 0, "node", EngineState.READY, None, 0.0, capacity=READY) for name in "ab"]
    room = EngineRoom(lambda engine: loads[engine.incarnation])
    loads["a"].sent("r", 5000, 5000, 0.0)
    assert room.choices(engines, 100) == engines
    loads["b"].sent("s", 5000, 5000, 0.0)
    assert room.choices(engines, 100) == []
    loads["b"].left("s", 0.0)
    room.refused(engines[0])
    assert room.choices(engines, 100) == engines[1:]
