"""Makes the drafter that the settings name."""

from kvasir.config.options import ConfigError
from kvasir.config.speculation import Speculation
from kvasir.engine.drafting.drafter import Drafter


def make_drafter(speculation: Speculation) -> Drafter:
    raise ConfigError(f"--speculative-config: the method {speculation.method} is unknown")
