"""`kvasir serve MODEL`: a frontend and its engines on this machine, from command-line options alone."""

import argparse
import importlib.util
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.lora_settings import AdaptersConfig, LoRAConfig
from kvasir.config.options import (
    ConfigError,
    OptionParser,
    flag_of,
    from_args,
    option,
    to_args,
    variable_of,
)
from kvasir.config.parsers import parse_int
from kvasir.config.process_settings import LinkConfig, ProcessConfig
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.settings import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    TraceConfig,
)
from kvasir.config.tls_settings import TlsConfig
from kvasir.config.variables import unknown_variables
from kvasir.hub.source import DEMO, normalise
from kvasir.local.check_model import check_adapters, check_model
from kvasir.local.gpus import take_gpus, visible_gpus
from kvasir.local.place import Place, open_place
from kvasir.local.process_specs import engine_spec, frontend_spec, grace_of, inherited_environment
from kvasir.local.run import LocalService, run_services
from kvasir.local.supervision.process_spec import ProcessSpec

_SET_HERE: Final = ("link", "link_keys", "service_uid", "black_box", "fd")


@dataclass(frozen=True)
class ServeConfig:
    data_parallel_size: int = option(
        1,
        "number of engines, each with its own copy of the model (and its own GPU); with --enable-expert-parallel "
        "each has an equal part of the experts",
        parse=parse_int(1, 1024),
        short="-dp",
    )


@dataclass(frozen=True)
class ServeSettings:
    serve: ServeConfig
    model: ModelConfig
    server: ServerConfig
    tls: TlsConfig
    chat: ChatConfig
    device: DeviceConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    executor: ExecutorConfig
    link: LinkConfig
    lora: LoRAConfig
    adapters: AdaptersConfig
    trace: TraceConfig
    process: ProcessConfig

    def __post_init__(self) -> None:
        self.executor.check_experts(self.serve.data_parallel_size)


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir serve",
        usage="kvasir serve MODEL [option …]",
        description="Serve one model on this machine until Ctrl-C, with a frontend process for OpenAI's HTTP API "
        "(or several, see --api-server-count) and one engine process per data-parallel rank. Every option can also "
        "be given as an environment variable: --max-model-len as KVASIR_MAX_MODEL_LEN.",
        epilog="Command lines of `vllm serve` are read too: --model NAME and --revision NAME instead of MODEL, "
        "--config FILE for a YAML file of options, --headless for an engine without an API, names with underscores "
        "and all other options, each of which is taken, named in a warning or rejected with a reason.",
    )
    add_serve_options(result)
    return result


def add_serve_options(parser: OptionParser, without: Collection[str] = ()) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="hf://org/name[@revision], a directory, a GGUF file, or demo://"
    )
    add_service_options(parser, without)


def add_service_options(parser: OptionParser, without: Collection[str] = ()) -> None:
    parser.takes_vllm = True
    add_sections(parser, ServeSettings, without=(*_SET_HERE, *without))


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    for text in (*args.notes, *unknown_variables()):
        print(f"kvasir serve: warning: {text}", file=sys.stderr)
    use = check_settings(settings)
    place = open_place(
        name_of(settings.model.source),
        host=settings.server.host,
        port=settings.server.port,
        uds=settings.server.uds,
        frontends=settings.server.api_server_count,
        engines=settings.serve.data_parallel_size,
        gpus=gpus_of(settings),
    )
    try:
        service = LocalService(
            place=place,
            processes=processes_of(settings, place),
            served_name=(settings.model.served_model_name or (settings.model.source,))[0],
            use=use,
            https=settings.tls.ssl_certfile is not None,
            needs_key=bool(settings.server.api_key or settings.server.api_key_dir),
            is_demo=normalise(settings.model.source) == DEMO and settings.chat.chat_template is None,
        )
        run_services([service])
        return 0
    finally:
        place.close()


def check_settings(settings: ServeSettings) -> str:
    """Return the use of the service, as `check_model` does.

    Raises ConfigError or HubError for settings that its processes would reject.
    """
    for package in ("uvicorn", "torch"):  # of the frontend's extra and of the engine's
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    for flag, directory in (
        ("--api-key-dir", settings.server.api_key_dir),
        ("--admin-api-key-dir", settings.server.admin_api_key_dir),
    ):
        if directory is not None and not Path(directory).is_dir():
            raise ConfigError(f"{flag} {directory} is not a directory: give one with a file per key")
    check_adapters(settings.adapters, settings.lora, settings.model)
    engine = EngineConfig(
        model=settings.model,
        device=settings.device,
        cache=settings.cache,
        scheduler=settings.scheduler,
        parallel=ParallelConfig(data_parallel_size=settings.serve.data_parallel_size),
        executor=settings.executor,
        lora=settings.lora,
    )
    return check_model(engine, settings.chat, settings.tls)


def settings_of(args: argparse.Namespace) -> ServeSettings:
    """Build the settings. Raises ConfigError for a contradiction."""
    executor = from_args(ExecutorConfig, args)
    executor.check_serves()
    lora, adapters = from_args(LoRAConfig, args), from_args(AdaptersConfig, args)
    return from_sections(
        ServeSettings,
        args,
        model={"source": args.model},
        server={"fd": None},
        executor=executor,
        link={"link": (), "link_keys": None, "service_uid": ""},
        lora=replace(lora, enable_lora=lora.enable_lora or adapters.any_named),
        adapters=adapters,
        trace={"black_box": None},
    )


def argv_of(settings: ServeSettings) -> list[str]:
    """Return the arguments of `kvasir` for these settings, without API keys: see `environment_of`."""
    shown = replace(settings, server=_without_keys(settings.server))
    return ["serve", settings.model.source, *_options(list(vars(shown).values()))]


def environment_of(settings: ServeSettings) -> dict[str, str]:
    """Return the API keys of the settings as environment, and no other option of Kvasir."""
    return inherited_environment() | _key_environment(settings.server)


def processes_of(settings: ServeSettings, place: Place) -> list[ProcessSpec]:
    shared = [settings.model, settings.link, settings.process]
    server = replace(_without_keys(settings.server), uds=None)  # they inherit the socket
    frontend_args = [
        "frontend",
        settings.model.source,
        *_options([*shared, server, settings.tls, settings.chat, settings.adapters]),
    ]
    own = [settings.device, settings.cache, settings.scheduler, settings.executor, settings.lora, settings.trace]
    engine_args = ["engine", settings.model.source, *_options([*shared, *own]), *_sharing(settings, place)]
    env, grace = inherited_environment(), grace_of(settings.process.drain_timeout)
    keys = _key_environment(settings.server)
    return [
        *(
            frontend_spec(place, number, frontend_args, env | keys, grace + settings.server.shutdown_delay)
            for number in range(settings.server.api_server_count)
        ),
        *(engine_spec(place, rank, engine_args, env, grace) for rank in range(settings.serve.data_parallel_size)),
    ]


def _sharing(settings: ServeSettings, place: Place) -> list[str]:
    size = settings.serve.data_parallel_size
    if size == 1 or not settings.executor.enable_expert_parallel:
        return []
    return ["--data-parallel-size", str(size), "--data-parallel-rpc-port", str(place.meeting_port)]


def _options(configs: Sequence[object]) -> list[str]:
    return [arg for config in configs for arg in to_args(config)]


def _without_keys(server: ServerConfig) -> ServerConfig:
    return replace(server, api_key=(), admin_api_key=())


def _key_environment(server: ServerConfig) -> dict[str, str]:
    # Every user of the machine can read a process's arguments: keys go into the environment.
    env = {}
    for name, keys in (("api_key", server.api_key), ("admin_api_key", server.admin_api_key)):
        flag = flag_of(name)
        if any("," in key for key in keys):
            raise ConfigError(
                f"{flag}: a key must not contain a comma; put keys with commas into files, see {flag}-dir"
            )
        if keys:
            env[variable_of(name)] = ",".join(keys)
    return env


def gpus_of(settings: ServeSettings) -> list[str]:
    # A single engine with device auto uses the first GPUs.
    engines, device = settings.serve.data_parallel_size, settings.device.device
    if device == "cpu" or (device == "auto" and not visible_gpus()):
        return []
    if device == "auto" and engines == 1:
        return []
    workers = settings.executor.num_workers
    if workers == 1:
        return take_gpus(engines, "choose --device cpu, or a smaller --data-parallel-size")
    smaller = "a smaller --tensor-parallel-size or --data-parallel-size"
    return take_gpus(engines * workers, f"choose --device cpu, or {smaller}", unit="worker")


def name_of(source: str) -> str:
    """Return the last part of the model's source, as a file name."""
    tail = source.rstrip("/:").rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", tail).strip(".") or "model"
