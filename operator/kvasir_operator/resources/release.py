"""The properties of the operator's installation that its objects depend on."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final

IMAGE_GROUP: Final = 65532  # of the user in the images


@dataclass(frozen=True)
class Release:
    frontend_image: str  # for services without an image of their own
    engine_image: str
    version: str
    operator_namespace: str = ""  # whose requests NetworkPolicies allow; "" for none
    reads_nodes: bool = True  # it sees cordons, so evictions can wait for it
    fs_group: int | None = IMAGE_GROUP  # may write to volumes; None on OpenShift, which chooses one

    @property
    def id(self) -> str:
        # It differs if pod templates may: 0.1.0-1a2b3c4d.
        images = json.dumps([self.frontend_image, self.engine_image])
        return f"{self.version}-{hashlib.sha256(images.encode()).hexdigest()[:8]}"
