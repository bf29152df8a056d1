from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=(1, 3), ids=lambda threads: f"{threads}-threads")
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
