"""The properties of the operator's installation that its objects depend on."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final

IMAGE_GROUP: Final = 65532
"""The group of the user in the images."""


@dataclass(frozen=True)
class Release:
    frontend_image: str
    """For services without an image of their own. The same applies to `engine_image`."""
    engine_image: str
    version: str
    """Version of the kvasir package."""
    operator_namespace: str = ""
    """NetworkPolicies allow the operator's requests from this namespace; "" if there is none."""
    reads_nodes: bool = True
    """Whether the operator sees cordoned nodes, so that evictions can wait for it."""
    fs_group: int | None = IMAGE_GROUP
    """The group that may write to volumes; None on OpenShift, which chooses one for each namespace."""

    @property
    def id(self) -> str:
        """An identifier that differs if the pod templates may differ, such as 0.1.0-1a2b3c4d."""
        images = json.dumps([self.frontend_image, self.engine_image])
        return f"{self.version}-{hashlib.sha256(images.encode()).hexdigest()[:8]}"
