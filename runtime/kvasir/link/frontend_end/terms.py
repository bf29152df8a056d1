"""The conditions under which a frontend accepts an engine."""

from dataclasses import dataclass

from kvasir.link.protocol import OLDEST_PROTOCOL, PROTOCOL_VERSION, Hello


@dataclass(frozen=True)
class Terms:
    """An engine must have the same values."""

    service: str
    fingerprint: str
    tokenizer_hash: str

    def refusal(self, hello: Hello, incarnation: str) -> str | None:
        """Return why the engine is rejected, or None. `incarnation`: its connection's identity."""
        if hello.incarnation != incarnation:
            return f"the engine calls itself {hello.incarnation!r} and its connection {incarnation!r}"
        if not OLDEST_PROTOCOL <= hello.protocol <= PROTOCOL_VERSION + 1:  # a newer engine supports its predecessor
            return (
                f"the engine speaks protocol {hello.protocol} (kvasir {hello.version}), the frontend "
                f"{OLDEST_PROTOCOL} to {PROTOCOL_VERSION}: run versions that are at most one protocol apart"
            )
        pairs = (
            ("service", hello.service, self.service, "its --link address leads to another service's frontend"),
            ("model fingerprint", hello.fingerprint, self.fingerprint, "give both the same model"),
            ("tokenizer hash", hello.tokenizer_hash, self.tokenizer_hash, "give both the same tokenizer files"),
        )
        for what, engines, frontends, remedy in pairs:
            if engines != frontends:
                return f"the {what} of the engine is {engines!r}, that of the frontend {frontends!r}: {remedy}"
        return None
