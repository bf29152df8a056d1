"""Facts about workers that the engine and the worker processes derive from the same settings."""

from dataclasses import replace

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.executor.processes.worker_messages import (
    WorkerSetup,
    decode_setup,
    encode,
    name_of_worker,
    reporting_rank,
    steps_in_flight,
)
from kvasir.executor.shared_memory.channel import MAX_UNANSWERED_FRAMES, ChannelLayout, WorkerHandle
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import DEMO, fetch
from kvasir.hub.weight_scheme import UNQUANTISED, WeightScheme, chosen_scheme, read_scheme
from runtime.worker.driver import engine_settings


@pytest.mark.parametrize(
    ("tensor", "stages", "rank", "name"),
    [
        (1, 1, 0, "worker 0"),
        (4, 1, 3, "worker 3"),
        (1, 3, 2, "worker 2 (stage 2)"),
        (2, 2, 0, "worker 0 (stage 0, tensor rank 0)"),
        (2, 2, 3, "worker 3 (stage 1, tensor rank 1)"),
        (3, 2, 4, "worker 4 (stage 1, tensor rank 1)"),
    ],
)
def test_a_worker_is_named_with_its_place_in_the_pipeline(tensor: int, stages: int, rank: int, name: str) -> None:
    config = ExecutorConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
    assert name_of_worker(rank, config) == name


@pytest.mark.parametrize(("tensor", "stages", "rank"), [(1, 1, 0), (4, 1, 0), (1, 3, 2), (2, 3, 4)])
def test_the_first_rank_of_the_last_stage_reports(tensor: int, stages: int, rank: int) -> None:
    assert reporting_rank(ExecutorConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)) == rank


@pytest.mark.parametrize(
    ("stages", "overlapped", "steps"),
    [(1, False, 1), (1, True, 2), (3, False, 3), (1000, False, MAX_UNANSWERED_FRAMES)],
)
def test_a_step_for_each_stage_is_in_flight(stages: int, overlapped: bool, steps: int) -> None:
    """As long as the ring has room: more would block the engine."""
    executor = ExecutorConfig(pipeline_parallel_size=stages)
    assert steps_in_flight(engine_settings(async_scheduling=overlapped, executor=executor)) == steps


@pytest.mark.parametrize(
    "scheme",
    [
        UNQUANTISED,
        chosen_scheme("int4", UNQUANTISED),
        read_scheme({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*k_proj": {}}}),
    ],
)
def test_the_weight_scheme_reaches_a_worker(scheme: WeightScheme) -> None:
    model = replace(load_model_info(fetch(DEMO, weights=False)), weight_scheme=scheme)
    handle = WorkerHandle(rank=0, segment=3, requests=4, replies=5, layout=ChannelLayout())
    setup = WorkerSetup(0, handle, engine_settings(), model, 1, 2, None, "worker 0", "info", "text")
    arrived = decode_setup(encode(setup)).model.weight_scheme
    assert arrived == scheme
    assert arrived.formats == scheme.formats
