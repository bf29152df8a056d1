"""`kvasir engine MODEL`: one data-parallel rank; the command of an engine pod."""

import argparse
import dataclasses
import logging
import os

from kvasir.config.executor_settings import RAY
from kvasir.config.nodes import NodesConfig, pod_index
from kvasir.config.options import ConfigError, OptionParser, flag_of, from_args, is_given
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.settings import EngineConfig, ParallelConfig
from kvasir.config.variables import refuse_unmanaged_variables, unknown_variables
from kvasir_contract.environment import MANAGED_VARIABLES, POD_INDEX
from kvasir_contract.logs import setup_logging


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir engine",
        usage="kvasir engine MODEL [option …]",
        description="Run one engine: scheduler, KV cache and model of one data-parallel rank. It connects to the "
        "frontends that --link names. Every option can also be given as an environment variable: "
        "--max-num-seqs as KVASIR_MAX_NUM_SEQS.",
    )
    result.set_defaults(notes=[])
    result.takes_vllm = MANAGED_VARIABLES not in os.environ  # the rules of extraArgs know no other names of options
    result.add_argument(
        "model", metavar="MODEL", help="hf://org/name[@revision], a directory, a GGUF file, or demo://"
    )
    add_sections(result, EngineConfig)
    return result


def config_of(args: argparse.Namespace) -> EngineConfig:
    """Return the settings. Raises ConfigError."""
    parallel, nodes = _place_of(args)
    config = from_sections(EngineConfig, args, model={"source": args.model}, parallel=parallel, nodes=nodes)
    nodes.check(config.executor.num_workers)
    if nodes.nnodes > 1:
        _check_backend(config.executor.distributed_executor_backend, nodes)
    return config


def _check_backend(backend: str | None, nodes: NodesConfig) -> None:
    if backend not in (None, "mp", RAY):
        raise ConfigError(
            f"--nnodes {nodes.nnodes} with --distributed-executor-backend {backend}: only worker processes (mp or "
            f"{RAY}) can be spread over nodes; leave one of the two out"
        )
    if backend == RAY and not nodes.is_leader:
        raise ConfigError(
            f"node {nodes.node_rank} of {nodes.nnodes} with --distributed-executor-backend {RAY}: Ray starts all "
            "nodes but node 0; start only that one"
        )


def _place_of(args: argparse.Namespace) -> tuple[ParallelConfig, NodesConfig]:
    # The rank and the node come from options, or from the pod's index.
    parallel, nodes = from_args(ParallelConfig, args), from_args(NodesConfig, args)
    index = pod_index()
    if index is None:
        return parallel, nodes
    rank, node_rank = divmod(index, nodes.nnodes)
    for name, given, own in (
        ("data_parallel_rank", parallel.data_parallel_rank, rank),
        ("node_rank", nodes.node_rank, node_rank),
    ):
        if given != own and is_given(name, args):
            raise ConfigError(
                f"{flag_of(name)} {given} contradicts {POD_INDEX}={index}, which is rank {rank}, node {node_rank}, "
                f"with --nnodes {nodes.nnodes}: leave one out"
            )
    return dataclasses.replace(parallel, data_parallel_rank=rank), nodes.at(index)


def run(args: argparse.Namespace) -> int:
    refuse_unmanaged_variables()
    config = config_of(args)
    config.executor.check_serves()
    if config.nodes.is_leader and not config.link.link:
        raise ConfigError(
            "an engine needs --link, the addresses of its frontends; to serve a model on this machine, use "
            "`kvasir serve MODEL`"
        )
    process = config.process
    setup_logging(f"engine-{config.parallel.data_parallel_rank}", process.log_level, process.log_format)
    for text in (*args.notes, *unknown_variables()):
        logging.getLogger(__name__).warning(text)
    if not config.nodes.is_leader:
        from kvasir.executor.nodes.member_process import run_member

        return run_member(config)
    from kvasir.engine.engine_process import run_engine

    return run_engine(config)
