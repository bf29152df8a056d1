"""KV sources: the engine from which another one fetches the KV blocks of a request instead of computing them."""

from collections.abc import Mapping

from kvasir.client.live_request import LiveRequest
from kvasir.link.frontend_end.remote_engine import RemoteEngine


def kv_source(request: LiveRequest, engine: RemoteEngine, engines: Mapping[str, RemoteEngine]) -> str:
    """Return the AddRequest.kv_source for a request that is sent to this engine.

    The source is the engine that had the request before, if it is on the link still, as one that drains is. It must
    be of the same numerics class: another one computes other values, and refuses.
    """
    if request.interruption is None:  # the engine has refused it as full: it has computed none of it
        return ""
    last = engines.get(request.last_engine)
    if last is None or last is engine or not last.numerics or last.numerics != engine.numerics:
        return ""
    return last.kv_address
