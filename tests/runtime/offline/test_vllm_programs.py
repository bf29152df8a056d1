"""Programs like vLLM's examples, with vllm replaced by kvasir: they run, or the error names the reason."""

import sys

import pytest

SETTINGS = "max_model_len=512, kv_cache_memory_bytes='32Mi', threads=1"

PROGRAMS = {
    "basic": """
from vllm import LLM, SamplingParams

llm = LLM(model="demo://", trust_remote_code=True, swap_space=4, SETTINGS)
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
for output in llm.generate(["Kvasir is", "A pod is"], sampling_params):
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
llm.close()
""",
    "arguments": """
from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser(description="generate")
EngineArgs.add_cli_args(parser)
parser.set_defaults(model="demo://")
group = parser.add_argument_group("Sampling parameters")
group.add_argument("--max-tokens", type=int)
group.add_argument("--top-p", type=float)
args = vars(parser.parse_args())
max_tokens, top_p = args.pop("max_tokens"), args.pop("top_p")
llm = LLM(**args)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = max_tokens
if top_p is not None:
    sampling_params.top_p = top_p
[output] = llm.generate("Kvasir is", sampling_params)
print(len(output.outputs[0].token_ids), llm.llm_engine.engine.settings.max_model_len)
llm.close()
""",
    "chat": """
from vllm import LLM

llm = LLM("demo://", SETTINGS)
conversation = [
    {"role": "system", "content": "You are helpful"},
    {"role": "user", "content": "What is Kvasir?"},
]
sampling_params = llm.get_default_sampling_params()
sampling_params.temperature = 0
[one] = llm.chat(conversation, sampling_params, use_tqdm=False)
several = llm.chat([conversation] * 3, sampling_params, use_tqdm=True)
assert [output.outputs[0].text for output in several] == [one.outputs[0].text] * 3
template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}{{ sign }}"
[templated] = llm.chat(
    conversation, sampling_params, use_tqdm=False, chat_template=template, chat_template_kwargs={"sign": ">>"}
)
print(templated.prompt)
llm.close()
""",
    "tools": """
import json

from vllm import LLM
from vllm.sampling_params import SamplingParams

llm = LLM(model="demo://", tokenizer_mode="auto", SETTINGS)
weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "get_current_weather", "parameters": weather}}]
messages = [{"role": "user", "content": "What is the weather in Bergen?"}]
sampling_params = SamplingParams(max_tokens=100, temperature=0.0)
outputs = llm.chat(messages, sampling_params=sampling_params, tools=tools)
print("get_current_weather" in outputs[0].prompt)
messages.append({"role": "assistant", "content": outputs[0].outputs[0].text.strip() or "none"})
messages.append({"role": "tool", "content": json.dumps({"degrees": 5}), "tool_call_id": "a23456789"})
print(bool(llm.chat(messages, sampling_params, tools=tools)[0].outputs[0].token_ids))
llm.close()
""",
    "structured": """
import json

from pydantic import BaseModel
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

class Car(BaseModel):
    brand: str

llm = LLM(model="demo://", SETTINGS)
def answer(**fields):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**fields), max_tokens=60, temperature=0)
    return llm.generate(prompts="Classify: ", sampling_params=params)[0].outputs[0].text

print(answer(choice=["Positive", "Negative"]) in ("Positive", "Negative"))
print(answer(regex=r"[a-z]{2}@b\\.com"))
print(answer(json=Car.model_json_schema()).startswith("{"))
as_dict = SamplingParams(structured_outputs={"choice": ["yes"]})
print(llm.generate("Is it?", as_dict)[0].outputs[0].text)
llm.close()
""",
    "metrics": """
from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector

llm = LLM(model="demo://", disable_log_stats=False, SETTINGS)
llm.generate(["Kvasir is"] * 2, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
for metric in llm.get_metrics():
    if isinstance(metric, Gauge):
        print(f"{metric.name} (gauge) = {metric.value}")
    elif isinstance(metric, Counter):
        print(f"{metric.name} (counter) = {metric.value}")
    elif isinstance(metric, Vector):
        print(f"{metric.name} (vector) = {metric.values}")
    elif isinstance(metric, Histogram):
        print(f"{metric.name} (histogram) sum = {metric.sum} count = {metric.count} {metric.buckets['+Inf']}")
llm.close()
""",
    "streaming": """
import asyncio

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="demo://", enforce_eager=True, SETTINGS))
    try:
        params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        count = 0
        async for output in engine.generate(request_id="stream-1", prompt="Kvasir is", sampling_params=params):
            for completion in output.outputs:
                print(completion.text, end="", flush=True)
            count += 1
            if output.finished:
                print(f"\\n[{count > 1}]")
                break
    finally:
        engine.shutdown()

asyncio.run(main())
""",
    "steps": """
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="demo://", SETTINGS))
scored = SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)
prompts = [("Kvasir is", scored), ("A pod is", SamplingParams(n=2))]
number = 0
while prompts or engine.has_unfinished_requests():
    if prompts:
        prompt, params = prompts.pop(0)
        engine.add_request(str(number), prompt, params)
        number += 1
    for output in engine.step():
        if output.finished:
            print(output.request_id, isinstance(output, RequestOutput))
engine.close()
""",
    "beams": """
from vllm import LLM
from vllm.sampling_params import BeamSearchParams

llm = LLM(model="demo://", SETTINGS)
outputs = llm.beam_search([{"prompt": "Kvasir is"}], BeamSearchParams(beam_width=3, max_tokens=8))
for sequence in outputs[0].sequences:
    print(sequence.text.startswith("Kvasir is"), round(sequence.cum_logprob, 3) <= 0)
llm.close()
""",
    "tokens": """
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

llm = LLM(model="demo://", dtype="half", quantization=None, seed=0, worker_cls="auto", SETTINGS)
tokenizer = llm.get_tokenizer()
messages = [{"role": "user", "content": "What is Kvasir?"}]
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
params = SamplingParams(temperature=0, detokenize=False)
[tokens] = llm.generate(TokensPrompt(prompt_token_ids=tokenizer.encode(text)), params, lora_request=None)
[chat] = llm.chat(messages, SamplingParams(temperature=0))
print(tokenizer.decode(tokens.outputs[0].token_ids, skip_special_tokens=True) == chat.outputs[0].text)
print(repr(tokens.outputs[0].text), llm.reset_prefix_cache())
llm.close()
""",
}

PRINTED: dict[str, list[str]] = {
    "basic": ["Prompt: 'Kvasir is', Generated text: ", "Prompt: 'A pod is', Generated text: "],
    "arguments": ["7 256"],
    "chat": ["<system>You are helpful<user>What is Kvasir?>>"],
    "tools": ["True", "True"],
    "structured": ["True", "@b.com", "True", "yes"],
    "metrics": [
        "vllm:num_requests_running (gauge) = 0.0",
        "vllm:generation_tokens (counter) = 10",
        "vllm:prompt_tokens (counter) = ",
        "vllm:time_to_first_token_seconds (histogram) sum = ",
    ],
    "streaming": ["[True]"],
    "steps": ["0 True", "1 True"],
    "beams": ["True True"] * 3,
    "tokens": ["True", "'' True"],
}


def run(source: str) -> None:
    text = source.replace("vllm", "kvasir").replace("kvasir:", "vllm:").replace("SETTINGS", SETTINGS)
    exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_for_vllm_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--max-tokens", "7", "--max_model_len", "256", "--swap-space", "4", "--kv-cache-memory-bytes", "32Mi"]
    monkeypatch.setattr(sys, "argv", ["program.py", *(given if name == "arguments" else [])])
    run(PROGRAMS[name])
    printed = capsys.readouterr().out
    for line in PRINTED[name]:
        assert printed.count(line) >= PRINTED[name].count(line), printed


@pytest.mark.parametrize(
    ("line", "error", "reason"),
    [
        (
            "LLM('demo://', quantization='awq')",
            ValueError,
            "quantization awq: the weights of this checkpoint are not quantised",
        ),
        (
            "LLM('demo://', speculative_config={'method': 'eagle3', 'model': 'org/head'})",
            ValueError,
            "speculative_config: the method eagle3 is not supported yet: use",
        ),
        ("LLM('demo://', pooler_config='{}')", ValueError, "the pooling is that of the model's files"),
        ("LLM('demo://', tokenizer_mode='mistral')", ValueError, "tokenizer_mode mistral: the tokenizer is always"),
        (
            "LLM('demo://', data_parallel_size=2)",
            ValueError,
            "data_parallel_size is 1, because an LLM",
        ),
        ("from vllm.multimodal.image import convert_image_mode", ModuleNotFoundError, "images and audio"),
        ("from vllm.no_such_module import x", ModuleNotFoundError, "No module named 'kvasir.no_such_module'"),
        ("LLM.__getattr__(None, 'reward')", AttributeError, "reward"),
    ],
)
def test_a_program_for_a_missing_feature_is_refused(line: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        run(f"from vllm import LLM\n{line}")
