"""The engine pods of an InferenceService, through kubectl and the caller's kubeconfig."""

import asyncio
import json
from typing import Any, Final

from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.config.options import CommandFailed
from kvasir_contract.api import APP, COMPONENT_LABEL, CRD_NAME, INSTANCE_LABEL, NAME_LABEL

_INDEX: Final = "apps.kubernetes.io/pod-index"
_OPTIONS: Final = {DisturbanceKind.KILL: ("--force", "--grace-period=0"), DisturbanceKind.DRAIN: ()}


class KubernetesTarget:
    # Engines have one pod each, whose ordinals are the ranks.
    kinds = frozenset(_OPTIONS)

    def __init__(self, namespace: str, service: str) -> None:
        self._namespace = namespace
        self._service = service
        self._selector = f"{NAME_LABEL}={APP},{INSTANCE_LABEL}={service},{COMPONENT_LABEL}=engine"

    async def engines(self) -> list[str]:
        # The InferenceService may be gone.
        found = json.loads(await self._kubectl("get", "pods", "--selector", self._selector, "--output", "json"))
        if not (ranks := [_rank(pod) for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]):
            await self._kubectl("get", CRD_NAME, self._service)  # fails if it is gone
        return sorted(ranks, key=int)

    async def disturb(self, kind: DisturbanceKind, rank: str) -> None:
        selector = f"{self._selector},{_INDEX}={rank}"
        await self._kubectl("delete", "pods", "--selector", selector, "--wait=false", *_OPTIONS[kind])

    async def _kubectl(self, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *("kubectl", "--namespace", self._namespace, *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except FileNotFoundError:
            raise CommandFailed("kubectl is not installed, or not in PATH") from None
        output, errors = await process.communicate()
        if process.returncode:
            raise CommandFailed(f"kubectl {arguments[0]}: {' '.join(errors.decode(errors='replace').split())}")
        return output.decode()


def _rank(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][_INDEX])
