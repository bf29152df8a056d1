"""Nodes of an engine whose workers are spread over several pods.

Node 0 is the leader: the engine's process, with its scheduler and its link to the frontends. The members run their
workers for the leader.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int
from kvasir_contract.endpoints import MASTER_PORT
from kvasir_contract.environment import POD_INDEX

LEADER: Final = "{leader}"
"""Stands for the leader's pod index in --master-addr."""
_HOST: Final = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True)
class NodesConfig:
    """The options have the names that vLLM gives them."""

    nnodes: int = option(
        1, "nodes (pods or machines) over which the workers of this engine are spread", parse=parse_int(1, 1024)
    )
    node_rank: int = option(
        0,
        f"this node's number: 0 is the engine, the others run workers for it [default: from {POD_INDEX}; else 0]",
        parse=parse_int(0),
    )
    master_addr: str | None = option(
        None,
        f"name or IP address of node 0; {LEADER} stands for the index of its pod [required with several nodes]",
        metavar="HOST",
    )
    master_port: int = option(MASTER_PORT, "port of node 0 for the other nodes", parse=parse_int(1, 65535))

    @property
    def is_leader(self) -> bool:
        # An engine of one node is its own leader.
        return self.node_rank == 0

    def at(self, pod_index: int) -> "NodesConfig":
        node_rank = pod_index % self.nnodes
        address = self.master_addr and self.master_addr.replace(LEADER, str(pod_index - node_rank))
        return dataclasses.replace(self, node_rank=node_rank, master_addr=address)

    def check(self, num_workers: int) -> None:
        """Raise ConfigError if the engine's workers cannot be spread over these nodes."""
        if self.node_rank >= self.nnodes:
            raise ConfigError(
                f"--node-rank {self.node_rank} is out of range: --nnodes {self.nnodes} has the nodes 0 to "
                f"{self.nnodes - 1}"
            )
        if num_workers % self.nnodes:
            raise ConfigError(
                f"--nnodes {self.nnodes}: the engine's {num_workers} workers (--tensor-parallel-size × "
                "--pipeline-parallel-size) cannot be spread evenly: choose a divisor of their number"
            )
        if self.nnodes > 1:
            self._check_address()

    def _check_address(self) -> None:
        if self.master_addr is None:
            raise ConfigError(
                f"--nnodes {self.nnodes} needs --master-addr, the name or IP address of node 0, on every node"
            )
        if LEADER in self.master_addr:
            raise ConfigError(
                f"--master-addr {self.master_addr}: {LEADER} stands for the index of a pod, and {POD_INDEX} is not "
                "set"
            )
        if not _HOST.fullmatch(self.master_addr):
            raise ConfigError(
                f"--master-addr {self.master_addr}: give a name or an IP address; the port is --master-port"
            )


def pod_index(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the value of KVASIR_POD_INDEX; None if it is not set. Raises ConfigError."""
    text = environ.get(POD_INDEX, "")
    if not text:
        return None
    try:
        return parse_int(0)(text)
    except ValueError as error:
        raise ConfigError(f"{POD_INDEX}: {error}") from error
