"""Verdicts on the options of `vllm serve` that Kvasir does not have under the same name.

The names are those of options.json. docs/vllm-options.md is generated from this module.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def _each(table: Mapping[str, str]) -> Mapping[str, str]:
    """Split names that share a text: "a b" → text becomes a → text, b → text."""
    return MappingProxyType({"--" + name: text for names, text in table.items() for name in names.split()})


MAPPED: Final = MappingProxyType(
    {
        "--device-memory-utilization": "--gpu-memory-utilization",
        "--disable-log-requests": "--no-log-requests",
        "--convert": "--task",
        "--disable-uvicorn-access-log": "--no-log-requests",
        "--enable-log-requests": "--log-requests",
        "--max-num-queued-tokens": "--max-queued-tokens",
        "--runner": "--task",
        "--shutdown-timeout": "--drain-timeout",
    }
)

READ: Final = MappingProxyType(
    {
        "--config": "read: a YAML file with names of options and their values",
        "--headless": "starts `kvasir engine`, which needs the address of a `kvasir frontend`",
        "--model": "the first argument, MODEL",
        "--revision": "part of the model, MODEL@REVISION; a directory has none",
        "--spec-method": "the field `method` of `--speculative-config`",
        "--spec-model": "the field `model` of `--speculative-config`",
        "--spec-tokens": "the field `num_speculative_tokens` of `--speculative-config`",
        "--tokenizer-revision": "part of `--tokenizer`, NAME@REVISION",
    }
)

IGNORED: Final = _each({
    "additional-config all2all-backend allow-deprecated-quantization attention-backend attention-config "
    "cp-kv-cache-interleave-size cpu-offload-params cudagraph-metrics data-parallel-supervisor-port "
    "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size "
    "dcp-q-replicate default-mm-loras disable-async-output-proc disable-cascade-attn "
    "disable-frontend-multiprocessing disable-hybrid-kv-cache-manager disable-nccl-for-dp-synchronization "
    "dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s "
    "dp-sync-interval elastic-ep-max-dp-size enable-batch-sharded-sampling enable-cumem-allocator "
    "enable-ep-weight-filter enable-flash-late-interaction enable-flashinfer-autotune enable-hc-sp "
    "enable-log-deltas enable-lora-bias enable-mamba-cache-stochastic-rounding "
    "enable-mamba-shared-prefix-checkpoint enable-mixed-moe-lora-format enable-moe-shared-loras "
    "enable-nccl-comm-suspend enable-offline-docs enable-prompt-tokens-details "
    "enable-server-load-tracking enable-shm-tensor-arena enable-tower-connector-lora eplb-config "
    "eplb-log-balancedness eplb-step-interval eplb-window-size expert-placement-strategy "
    "fail-on-environ-validation fully-sharded-loras gdn-prefill-backend headless "
    "ir-op-priority kda-decode-backend kda-prefill-backend kernel-config linear-backend lora-dtype "
    "lora-extra-vocab-size lora-target-modules mamba-backend mamba-block-size mamba-cache-dtype "
    "mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm "
    "max-log-len max-lora-cls-labels max-parallel-loading-workers model-impl "
    "moe-backend monokernel multi-step-stream-outputs num-lookahead-slots num-redundant-experts "
    "num-scheduler-steps offload-backend offload-group-size offload-num-in-group offload-params "
    "offload-prefetch-step optimization-level performance-mode preemption-mode prefill-schedule-interval "
    "prefix-cache-retention-interval prefix-match-unit pt-load-map-location renderer-num-workers "
    "replayssm-buffer-len safetensors-load-strategy safetensors-prefetch-block-size "
    "safetensors-prefetch-num-threads scheduler-reserve-full-isl sleep-mode-backend "
    "sleep-mode-offload-cudagraph sleep-preserve-parameter-names sparse-indexer-topk-backend "
    "specialize-active-lora sse-keep-alive-interval stream-interval swa-bounded-replay swap-space "
    "tokenizer-pool-size tool-strict-level ubatch-size use-replayssm use-tqdm-on-load "
    "use-v2-block-manager watermark worker-use-ray":
        "Kvasir has nothing that it would change",
    "cuda-graph-sizes cudagraph-capture-sizes max-cudagraph-capture-size max-seq-len-to-capture":
        "give the sizes in --compilation-config",
    "collect-detailed-traces enable-layerwise-nvtx-tracing enable-mfu-metrics jit-monitor-mode "
    "jit-monitor-verbose ray-workers-use-nsight":
        "see docs/profiling.md",
    "enable-chunked-prefill": "long prompts are always computed in chunks",
    "numa-bind numa-bind-cpus numa-bind-nodes": "start `kvasir serve` below numactl",
    "code-revision trust-remote-code": "code from a model's own repository is never run",
    "allowed-local-media-path allowed-media-domains disable-chunked-mm-input "
    "disable-mm-preprocessor-cache enable-multimodal-encoder-data-parallel interleave-mm-strings "
    "language-model-only limit-mm-per-prompt media-io-kwargs mm-device-do-normalize "
    "mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
    "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode "
    "mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type "
    "mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc "
    "skip-mm-profiling trust-request-mm-kwargs video-pruning-method video-pruning-rate":
        "models take text only",
    "aggregate-engine-logging custom-histogram-buckets enable-logging-iteration-details kv-cache-metrics "
    "kv-cache-metrics-sample per-request-spec-decode-metrics show-hidden-metrics-for-version":
        "see docs/metrics.md",
    "disable-access-log-for-endpoints log-error-stack": "see --log-level and --log-requests",
    "h11-max-header-count h11-max-incomplete-event-size": "the limit of bodies is --max-request-bytes",
    "enable-auto-tool-choice": "tool calls are always on, if the format of the calls is known",
    "anthropic-disabled-thinking-effort cohere-format cohere-is-reasoning-model":
        "what Kvasir lacks is rejected request by request: see docs/api.md",
    "data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb": "see docs/data-parallel.md",
    "cpu-distributed-timeout-seconds distributed-timeout-seconds": "use --worker-timeout",
    "long-prefill-token-threshold-adaptive max-long-partial-prefills": "use --long-prefill-token-threshold",
    "guided-decoding-backend structured-outputs-config": "see docs/structured-output.md",
    "reasoning-config": "see --reasoning-parser",
})  # fmt: skip

_NOT_YET: Final = "not supported yet"

REFUSED: Final = _each({
    "quantization-config": "use --quantization int8, int4 or fp8",
    "calculate-kv-scales": "the scales of an fp8 KV cache come from the checkpoint",
    "kv-cache-dtype-skip-layers": "all layers have the precision of --kv-cache-dtype",
    "override-attention-dtype": "attention has the precision of --dtype",
    "diffusion-config": f"language models that diffuse are {_NOT_YET}",
    "tool-server": f"tools that the server calls itself are {_NOT_YET}",
    "reasoning-effort-map": "the chat template reads reasoning_effort as the request has it",
    "tokenizer-mode": "the tokenizer is always the fast one of tokenizer.json",
    "skip-tokenizer-init tokens-only":
        "a frontend always has a tokenizer; requests may send token ids, and kvasir.LLM takes them too",
    "max-logprobs": "requests may ask for at most 20",
    "logprobs-mode": "log probabilities are those of the model's unchanged logits",
    "return-tokens-as-token-ids": "is a field of a request here: return_tokens_as_token_ids",
    "return-sampling-mask enable-return-routed-experts enable-trace-replay aux-output-config":
        f"such outputs are {_NOT_YET}",
    "logits-processors logits-processor-pattern io-processor-plugin": f"plugins of vLLM are {_NOT_YET}",
    "pooler-config override-pooler-config":
        "the pooling is that of the model's files (modules.json, 1_Pooling/config.json): change it there",
    "hf-config-path config-format": "config.json of the model is read: change it there, or by --hf-overrides",
    "hf-token": "every user of the machine can read arguments: set the variable HF_TOKEN",
    "rope-scaling": "use --hf-overrides '{\"rope_scaling\": {…}}'",
    "rope-theta": "use --hf-overrides '{\"rope_theta\": NUMBER}'",
    "disable-sliding-window":
        "use --hf-overrides '{\"sliding_window\": null}', or '{\"use_sliding_window\": false}' "
        "if config.json has that field",
    "model-class-overrides": "the class is the one that config.json names: change it there, or by --hf-overrides",
    "model-loader-extra-config ignore-patterns": "weights are safetensors files in the model's directory",
    "scheduler-cls": "the scheduler is Kvasir's own: see --scheduling-policy",
    "max-num-partial-prefills": "use --long-prefill-token-threshold",
    "max-num-active-seqs": "use --max-num-seqs",
    "max-num-queued-reqs": "use --max-live-requests, the requests that a frontend accepts",
    "max-num-scheduled-tokens": "use --max-num-batched-tokens",
    "kv-transfer-config kv-events-config ec-transfer-config ec-manager-config engram-config "
    "kv-offloading-backend kv-offloading-size weight-transfer-config":
        f"transfers of KV caches, of encodings and of weights are {_NOT_YET}",
    "kv-sharing-fast-prefill use-fp64-gumbel": "it changes answers in a way that Kvasir does not have",
    "cpu-offload-gb": "weights stay on their device: use a smaller model, or a smaller --dtype",
    "decode-context-parallel-size prefill-context-parallel-size": f"context parallelism is {_NOT_YET}",
    "enable-eplb enable-elastic-ep": f"balancing of experts is {_NOT_YET}",
    "enable-dbo": f"two overlapping batches are {_NOT_YET}",
    "enable-fault-tolerance fault-tolerance-config watchdog-config":
        "failures are always handled: see --worker-timeout, --slow-step and docs/operating.md",
    "enable-sleep-mode": f"a sleep mode is {_NOT_YET}: stop the service",
    "enable-prompt-embeds enable-mm-embeds mm-encoder-only": f"embeddings as prompts are {_NOT_YET}",
    "grpc grpc-port": "there is only HTTP",
    "enable-scale-out": "its endpoints are those of vLLM's disaggregated serving",
    "response-role": "the role of answers is assistant",
    "enable-force-include-usage": "ask for it in the request: stream_options with include_usage",
    "enable-per-request-metrics": "answers have no timings: GET /metrics has their distribution",
    "enable-log-outputs": "answers are never logged",
    "logging-config": "use --log-config-file, --log-level or --log-format",
    "fingerprint-mode fingerprint-value": f"{_NOT_YET}",
    "watermark-config": f"watermarks are {_NOT_YET}",
    "device-ids": "set CUDA_VISIBLE_DEVICES",
    "data-parallel-multi-port-external-lb": "start a `kvasir serve` for each rank: see docs/data-parallel.md",
    # of kvasir engine
    "nnodes node-rank master-addr master-port":
        "is an option of kvasir engine: see docs/multi-node.md for the commands",
    "data-parallel-rank data-parallel-size-local data-parallel-start-rank data-parallel-address "
    "data-parallel-rpc-port":
        "is for engines on several machines: start `kvasir frontend` on one and `kvasir engine` on each, "
        "see docs/data-parallel.md",
})  # fmt: skip

NEUTRAL: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "--config-format": ("auto", "hf"),
        "--convert": ("auto", "none"),
        "--cpu-offload-gb": ("0",),
        "--data-parallel-rank": ("0",),
        "--data-parallel-size-local": ("1",),
        "--data-parallel-start-rank": ("0",),
        "--decode-context-parallel-size": ("1",),
        "--fingerprint-mode": ("none",),
        "--hf-token": ("",),
        "--logprobs-mode": ("raw_logprobs",),
        "--max-logprobs": ("20",),
        "--max-num-partial-prefills": ("1",),
        "--nnodes": ("1",),
        "--node-rank": ("0",),
        "--prefill-context-parallel-size": ("1",),
        "--response-role": ("assistant",),
        "--tokenizer-mode": ("auto", "hf"),
    }
)
"""Values of rejected options that ask for the behaviour of Kvasir."""

# These values mean in vLLM that the option is not set.
UNSET: Final[Mapping[str, str]] = MappingProxyType(
    {"--long-prefill-token-threshold": "0", "--worker-cls": "auto", "--worker-extension-cls": ""}
)

VALUES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "--log-level": {"trace": "debug", "critical": "error"},
        "--prefix-caching-hash-algo": {"sha256_cbor": "sha256"},
    }
)
"""Value of vLLM → value here."""
