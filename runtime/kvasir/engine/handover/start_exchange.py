"""Starts the exchange of an engine's KV blocks, and chooses its address."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Final

from kvasir.config.options import ConfigError, flag_of
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import HAND_OVER_AUTO, HAND_OVER_OFF, EngineConfig
from kvasir.engine.handover.exchange import Exchange
from kvasir.engine.handover.messages import HandOverEvent
from kvasir.executor.executor import Executor
from kvasir.layers.kv import FullAttention, KVCacheConfig
from kvasir.wire.address import MAX_IPC_PATH, LinkAddress, parse_address
from kvasir.wire.keys import load_shared_keys
from kvasir_contract.endpoints import KV_HAND_OVER_PORT
from kvasir_contract.environment import POD_IP

_LOOPBACK: Final = "tcp://127.0.0.1:0"

log = logging.getLogger(__name__)


def start_exchange(
    config: EngineConfig,
    incarnation: str,
    executor: Executor,
    cache: KVCacheConfig,
    kv_class_of: Callable[[str], str],
    deliver: Callable[[HandOverEvent], None],
) -> tuple[Exchange, str] | None:
    """Return the running exchange and its address, "" if it serves no blocks; None if hand-over is impossible.

    `kv_class_of` gets the layout of bytes. Raises ConfigError for an unusable address.
    """
    if config.cache.kv_hand_over == HAND_OVER_OFF or not config.cache.enable_prefix_caching:
        return None
    memory = executor.block_bytes()
    problem = ""
    if memory is None:
        problem = "the KV cache is in worker processes or on a device"
    elif len(cache.groups) > 1 or not isinstance(cache.groups[0].spec, FullAttention):
        problem = "the model has layers with a sliding window"
    if memory is None or problem:
        if config.cache.kv_hand_over != HAND_OVER_AUTO:
            raise ConfigError(f"{flag_of('kv_hand_over')}: {problem}, and such a cache cannot be handed over")
        log.info("no KV hand-over: %s. Requests from other engines are computed again", problem)
        return None
    keys = load_shared_keys(config.link.link_keys) if config.link.link_keys else None
    exchange = Exchange(memory, kv_class_of(memory.layout), keys, deliver)
    try:
        if config.cache.kv_hand_over == HAND_OVER_AUTO:
            address = _listen_if_possible(exchange, own_address(config.link, incarnation))
        else:
            address = exchange.listen(config.cache.kv_hand_over)
    except BaseException:
        exchange.close()
        raise
    exchange.start()
    log.info("KV hand-over: other engines fetch blocks at %s", address or "no address of this engine")
    return exchange, address


def _listen_if_possible(exchange: Exchange, text: str) -> str:
    try:
        return exchange.listen(text) if text else ""
    except ConfigError as error:  # the user did not ask for this address
        log.warning("the engine serves no KV blocks: %s", error)
        return ""


def own_address(link: LinkConfig, incarnation: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of this pod, or one next to a link on this machine; "" if frontends are elsewhere."""
    if ip := environ.get(POD_IP):
        return LinkAddress("", host=ip, port=KV_HAND_OVER_PORT).endpoint()
    for text in link.link:
        address = parse_address(text)
        if address.is_ipc:
            path = str(PurePath(address.path).with_name(f"kv-{incarnation}"))
            if len(path.encode()) <= MAX_IPC_PATH:
                return f"ipc://{path}"
        # Without keys a loopback port would be open to all users of the machine.
        if address.is_loopback or (address.is_ipc and link.link_keys):
            return _LOOPBACK
    return ""
