"""An EngineLink whose events wait in a queue, for tests that read them one by one."""

import queue
from typing import Any

from kvasir.config.settings import LinkConfig
from kvasir.link.engine_end.engine_link import DrainSettled, EngineIdentity, EngineLink, FrontendLost, Received


class QueuedLink(EngineLink):
    """Delivers into `inbox`; a test may put None there, to wake its reader."""

    def __init__(self, config: LinkConfig, identity: EngineIdentity, **options: Any) -> None:
        self.incarnation = identity.incarnation
        self.inbox: queue.SimpleQueue[Received | FrontendLost | DrainSettled | None] = queue.SimpleQueue()
        super().__init__(config, identity, self.inbox.put, **options)
