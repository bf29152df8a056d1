from collections.abc import Sequence

import pytest

from kvasir.client.input.prompted import Prompted, PromptHashes
from kvasir.client.live_request import LiveRequest
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, Ready
from kvasir.request.hashing import HASH_ALGORITHMS, SHA256, BlockHashing, chain_fits, chain_root
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import token_array

PROMPT = token_array(range(40))


class NoText:
    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def live(cache_salt: str = "") -> LiveRequest:
    core = RequestCore(SamplingParams(max_tokens=8, seed=0), cache_salt=cache_salt)
    return LiveRequest("r", Prompted(PROMPT, core, hashes=PromptHashes(PROMPT, cache_salt)), NoText())


def engine(ready: Ready | None) -> RemoteEngine:
    return RemoteEngine("engine-0-a", 0, "node", EngineState.READY, None, last_seen=0.0, capacity=ready)


@pytest.mark.parametrize("salt", ["", "tenant"])
def test_an_engine_gets_the_chain_of_its_block_size_and_the_salt(salt: str) -> None:
    request = live(salt)
    for block_size in (16, 8, 16):
        message = request.message(BlockHashing(block_size))
        assert chain_fits(message.block_hashes, chain_root(message.cache_salt), PROMPT, block_size)


def test_an_engine_gets_the_chain_of_its_algorithm() -> None:
    request = live("tenant")
    for algorithm in HASH_ALGORITHMS:
        message = request.message(BlockHashing(16, algorithm))
        assert chain_fits(message.block_hashes, chain_root("tenant", algorithm=algorithm), PROMPT, 16)


def test_an_engine_without_a_prefix_cache_gets_no_hashes() -> None:
    assert live().message(None).block_hashes == b""


def test_a_second_attempt_hashes_the_prompt_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    request = live()
    first = request.message(BlockHashing(16)).block_hashes
    monkeypatch.setattr("kvasir.client.input.prompted.packed_chain", None)
    request.output_token_ids.extend([7] * 20)
    assert request.message(BlockHashing(16)).block_hashes == first


@pytest.mark.parametrize(
    ("ready", "hashing"),
    [
        (None, None),
        (Ready(16, 64, 128, 8), None),
        (Ready(16, 64, 128, 8, (FEATURE_PREFIX_CACHE,)), BlockHashing(16)),
        (Ready(32, 64, 128, 8, ("of-tomorrow", FEATURE_PREFIX_CACHE)), BlockHashing(32)),
        (Ready(16, 64, 128, 8, (FEATURE_PREFIX_CACHE,), hash_algorithm=SHA256), BlockHashing(16, SHA256)),
        (Ready(16, 64, 128, 8, (FEATURE_PREFIX_CACHE,), hash_algorithm="of-tomorrow"), None),
    ],
)
def test_engine_announces_its_look_ups_of_hashes_and_block_size(
    ready: Ready | None, hashing: BlockHashing | None
) -> None:
    assert engine(ready).block_hashing == hashing
