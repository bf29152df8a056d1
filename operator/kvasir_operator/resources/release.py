"""What the operator's installation contributes to the objects that it makes."""

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    frontend_image: str
    """For services that name no image; so is `engine_image`."""
    engine_image: str
    version: str
    """Version of the kvasir package."""
    operator_namespace: str = ""
    """NetworkPolicies let the operator's probes in from here; "" if there is no such namespace."""
    reads_nodes: bool = True
    """Whether the operator sees cordoned nodes, so that evictions can wait for it."""

    @property
    def id(self) -> str:
        """Differs between releases whose pod templates may differ: 0.1.0-1a2b3c4d."""
        images = json.dumps([self.frontend_image, self.engine_image])
        return f"{self.version}-{hashlib.sha256(images.encode()).hexdigest()[:8]}"
