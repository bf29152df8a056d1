"""The scheduler under random arrivals, lengths, shared prefixes, priorities, aborts, attempts and pool sizes."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.scheduling.random_events import (
    Arrival,
    Event,
    Machine,
    aborts,
    agains,
    arrivals,
    crowds,
    events,
    machines,
    steps,
    tight_machines,
    wakes,
)
from runtime.engine.scheduling.random_run import Run


@settings(deadline=None)
@given(machine=machines(), happenings=events)
def test_every_request_ends_as_if_alone_and_nothing_leaks(machine: Machine, happenings: list[Event]) -> None:
    run = Run(machine)
    for event in happenings:
        run.happen(event)
    run.finish()
    run.check_answers()


@settings(deadline=None)
@given(
    machine=tight_machines,
    crowd=crowds,
    happenings=st.lists(st.one_of(aborts, agains, steps, steps, wakes), max_size=24),
)
def test_preempted_requests_end_as_if_alone_and_nothing_leaks(
    machine: Machine, crowd: list[Arrival], happenings: list[Event]
) -> None:
    run = Run(machine)
    for arrival in crowd:
        run.happen(arrival)
    for event in happenings:
        run.happen(event)
    run.finish()
    run.check_answers()


@settings(deadline=None)
@given(machine=machines(), crowd=st.lists(arrivals, min_size=2, max_size=12))
def test_equal_priorities_are_admitted_by_arrival(machine: Machine, crowd: list[Arrival]) -> None:
    """No starvation: a waiting request is not overtaken, so its turn comes."""
    run = Run(machine | {"by_priority": False})
    for arrival in crowd:
        run.arrive(replace(arrival, ready=True, compiled=True, alone=False))
        run.step()
        arrived = [int(name[1:]) for name in run.engine.scheduler.requests]
        served = [int(request.request_id[1:]) for request in run.engine.scheduler.running]
        assert served == sorted(arrived)[: len(served)]
    run.finish()
    run.check_answers()


@settings(deadline=None)
@given(machine=machines(), crowd=st.lists(arrivals, min_size=1, max_size=10))
def test_every_running_request_goes_on_in_every_step(machine: Machine, crowd: list[Arrival]) -> None:
    """Also next to a long prompt that arrives later and goes before it."""
    run = Run(machine | {"max_in_flight": 1, "stages": 1, "num_blocks": 400})
    while crowd or run.engine.core.has_work:
        if crowd:
            run.arrive(replace(crowd.pop(), ready=True, compiled=True, alone=False))
        running = {request.request_id for request in run.engine.scheduler.running}
        run.step()
        if running:
            assert running <= {row.request_id for row in run.engine.executor.steps[-1].scheduled}
    run.check_answers()
