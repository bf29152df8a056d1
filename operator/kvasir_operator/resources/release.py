"""The properties of the installation that its objects depend on."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final

IMAGE_GROUP: Final = 65532  # of the images' user


@dataclass(frozen=True)
class Release:
    frontend_image: str  # of services without their own
    engine_image: str
    version: str
    operator_namespace: str = ""  # allowed by NetworkPolicies; "" for none
    reads_nodes: bool = True  # evictions can wait for the operator
    fs_group: int | None = IMAGE_GROUP  # None on OpenShift, which chooses one

    @property
    def id(self) -> str:
        # differs if pod templates may: 0.1.0-1a2b3c4d
        images = json.dumps([self.frontend_image, self.engine_image])
        return f"{self.version}-{hashlib.sha256(images.encode()).hexdigest()[:8]}"
