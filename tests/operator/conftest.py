import pytest

from mock_cluster import Clock, MockCluster
from mock_operator import Operator


@pytest.fixture
def operator() -> Operator:
    clock = Clock()
    return Operator(MockCluster(clock), clock)


@pytest.fixture
async def settled(operator: Operator) -> Operator:
    """A service in which everything is as desired. Calls are counted from here on."""
    operator.cluster.add_service()
    await operator.settle()
    operator.cluster.calls.clear()
    operator.cluster.statuses.clear()
    return operator
