"""An EngineLink whose events wait in a queue, for tests that read them one by one."""

import queue
from typing import Any

from kvasir.config.process_settings import LinkConfig
from kvasir.link.engine_end.engine_link import CacheEventsWanted, EngineIdentity, EngineLink, LinkEvent


class QueuedLink(EngineLink):
    """Delivers into `inbox`; a test may put None there, to wake its reader.

    The wish of each frontend for CacheEvents goes to `wishes` instead.
    """

    def __init__(self, config: LinkConfig, identity: EngineIdentity, **options: Any) -> None:
        self.incarnation = identity.incarnation
        self.inbox: queue.SimpleQueue[LinkEvent | None] = queue.SimpleQueue()
        self.wishes: queue.SimpleQueue[CacheEventsWanted] = queue.SimpleQueue()
        super().__init__(config, identity, self._sort, **options)

    def _sort(self, event: LinkEvent) -> None:
        if isinstance(event, CacheEventsWanted):
            self.wishes.put(event)
        else:
            self.inbox.put(event)
