"""An engine with a death watch, and a child process that keeps its sockets open: `watched_engine_process.py ADDRESS
INCARNATION KEYS`. Linux keeps the connections of a killed engine open until the child ends, by the end of stdin."""

import os
import queue
import sys

from kvasir.config.process_settings import LinkConfig
from kvasir.link.engine_end.engine_link import EngineIdentity, EngineLink, Received
from kvasir.link.protocol import AddRequest, EngineStats, Outputs, Ready, RequestOutput
from kvasir.wire.death_watch import DeathWatch

address, incarnation, keys = sys.argv[1:]
inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
link = EngineLink(
    LinkConfig(link=(address,), link_keys=keys or None),
    EngineIdentity(incarnation, 0, "node", "uid", "0", "model", "tokenizer"),
    inbox.put,
    death_watch=DeathWatch(),
)
link.start()
link.announce_ready(Ready(block_size=16, num_blocks=100, max_model_len=4096, max_num_seqs=64))
while True:
    item = inbox.get()
    if isinstance(item, Received) and isinstance(item.message, AddRequest):
        if os.fork() == 0:
            os.read(sys.stdin.fileno(), 1)
            os._exit(0)
        answer = RequestOutput(item.message.request_id, item.message.attempt, 0, [7])
        link.send(item.frontend, Outputs([answer], EngineStats(0, 1, 2, 3)))
