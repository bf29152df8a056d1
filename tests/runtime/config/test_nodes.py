import pytest

from kvasir.cli.engine import config_of, parser
from kvasir.config.nodes import NodesConfig, pod_index
from kvasir.config.options import ConfigError
from kvasir.config.settings import EngineConfig
from kvasir_contract.endpoints import MASTER_PORT
from kvasir_contract.environment import POD_INDEX

FOUR = ("-tp", "4", "--nnodes", "2", "--master-addr", "engine-{leader}.engine")

ON_RAY = ("-tp", "2", "--nnodes", "2", "--master-addr", "a", "--distributed-executor-backend", "ray")


def config(*options: str) -> EngineConfig:
    return config_of(parser().parse_args(["demo://", *options]))


def test_an_engine_has_one_node_by_default() -> None:
    nodes = config().nodes
    assert (nodes.nnodes, nodes.node_rank, nodes.is_leader) == (1, 0, True)


def test_options_name_a_node() -> None:
    nodes = config("-tp", "4", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.7").nodes
    assert nodes == NodesConfig(2, 1, "10.0.0.7", MASTER_PORT)
    assert not nodes.is_leader


def test_ray_may_start_the_other_nodes() -> None:
    engine = config(*ON_RAY)
    assert (engine.nodes.nnodes, engine.executor.distributed_executor_backend) == (2, "ray")


@pytest.mark.parametrize(
    ("index", "rank", "node", "address"),
    [
        (0, 0, 0, "engine-0.engine"),
        (1, 0, 1, "engine-0.engine"),
        (2, 1, 0, "engine-2.engine"),
        (5, 2, 1, "engine-4.engine"),
    ],
)
def test_a_pod_index_names_rank_node_and_leader(
    index: int, rank: int, node: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POD_INDEX, str(index))
    engine = config(*FOUR)
    assert engine.parallel.data_parallel_rank == rank
    assert (engine.nodes.node_rank, engine.nodes.master_addr) == (node, address)


def test_a_pod_index_is_the_rank_of_an_engine_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_INDEX, "3")
    assert config().parallel.data_parallel_rank == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nnodes", "2", "--master-addr", "a"), "--nnodes 2: the engine's 1 workers"),
        (("-tp", "4", "--nnodes", "3", "--master-addr", "a"), "--nnodes 3: the engine's 4 workers"),
        (("-tp", "2", "--nnodes", "2"), "--nnodes 2 needs --master-addr"),
        (
            (
                "-tp",
                "2",
                "--nnodes",
                "2",
                "--master-addr",
                "a",
                "--distributed-executor-backend",
                "external_launcher",
            ),
            "--nnodes 2 with --distributed-executor-backend external_launcher: only worker processes",
        ),
        (
            (*ON_RAY, "--node-rank", "1"),
            "node 1 of 2 with --distributed-executor-backend ray: Ray starts all nodes but node 0",
        ),
        (("-tp", "2", "--nnodes", "2", "--node-rank", "2", "--master-addr", "a"), "--node-rank 2 is out of range"),
        (("--node-rank", "1"), "--node-rank 1 is out of range"),
        (FOUR, "POD_INDEX is not set"),
        (("-tp", "2", "--nnodes", "2", "--master-addr", "host:5571"), "the port is --master-port"),
        (("-tp", "2", "--nnodes", "2", "--master-addr", "tcp://a"), "give a name or an IP address"),
    ],
)
def test_nodes_that_cannot_work_are_rejected_by_name(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*options)


def test_options_must_not_contradict_the_pod_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_INDEX, "2")
    with pytest.raises(ConfigError, match="--node-rank 1 contradicts KVASIR_POD_INDEX=2"):
        config(*FOUR, "--node-rank", "1")
    for rank in ("0", "2"):
        message = f"--data-parallel-rank {rank} contradicts KVASIR_POD_INDEX=2, which is rank 1"
        with pytest.raises(ConfigError, match=message):
            config(*FOUR, "--data-parallel-rank", rank)
    assert config(*FOUR, "--data-parallel-rank", "1", "--node-rank", "0").parallel.data_parallel_rank == 1
    monkeypatch.setenv(POD_INDEX, "3")
    with pytest.raises(ConfigError, match="--node-rank 0 contradicts KVASIR_POD_INDEX=3, which is rank 1, node 1"):
        config(*FOUR, "--node-rank", "0")
    monkeypatch.setenv("KVASIR_DATA_PARALLEL_RANK", "0")
    with pytest.raises(ConfigError, match="--data-parallel-rank 0 contradicts KVASIR_POD_INDEX=3"):
        config(*FOUR)


def test_a_pod_index_is_a_number() -> None:
    assert pod_index({}) is None
    assert pod_index({POD_INDEX: "7"}) == 7
    with pytest.raises(ConfigError, match="KVASIR_POD_INDEX: 'x' is not a whole number"):
        pod_index({POD_INDEX: "x"})
