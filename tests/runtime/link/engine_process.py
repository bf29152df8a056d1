"""An engine's end of the link in a process of its own, to be stopped and killed: `engine_process.py ADDRESS
INCARNATION KEYS TIMEOUT`. Answers every request with one token."""

import queue
import sys

from kvasir.config.process_settings import LinkConfig
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, Received
from kvasir.link.protocol import AddRequest, EngineStats, Outputs, Ready, RequestOutput

address, incarnation, keys, timeout = sys.argv[1:]
inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
link = EngineLink(
    LinkConfig(link=(address,), link_keys=keys or None, heartbeat_timeout=float(timeout)),
    EngineIdentity(incarnation, 0, "node", "uid", "0", "model", "tokenizer"),
    inbox.put,
)
link.start()
link.announce_ready(Ready(block_size=16, num_blocks=100, max_model_len=4096, max_num_seqs=64))
while True:
    item = inbox.get()
    if isinstance(item, Received) and isinstance(item.message, AddRequest):
        answer = RequestOutput(item.message.request_id, item.message.attempt, 0, [7])
        link.send(item.frontend, Outputs([answer], EngineStats(0, 1, 2, 3)))
