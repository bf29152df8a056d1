"""Names of models and local directories; see test_huggingface.py for hf://."""

from pathlib import Path

import pytest

from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.source import fetch, normalise


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("demo://", "demo://"),
        ("hf://Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"),
        ("hf://gpt2", "hf://gpt2"),
        ("s3://bucket/models/qwen", "s3://bucket/models/qwen"),
        ("hf://org/name@v1.0", "hf://org/name@v1.0"),
        ("hf://org/name@refs/pr/1", "hf://org/name@refs/pr/1"),
        ("hf://org/name-GGUF:Q4_K_M", "hf://org/name-GGUF:Q4_K_M"),
        ("org/name-GGUF:UD-Q4_K_XL@v1", "hf://org/name-GGUF:UD-Q4_K_XL@v1"),
        ("org/name:model.Q8_0.gguf", "hf://org/name:model.Q8_0.gguf"),
        ("Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B@main", "hf://Qwen/Qwen3-0.6B@main"),
        ("gpt2", "hf://gpt2"),
        ("file:///models/a b", "file:///models/a b"),
        ("/models/llama", "file:///models/llama"),
    ],
)
def test_every_form_has_one_normal_form(text: str, source: str) -> None:
    assert normalise(text) == source
    assert normalise(source) == source


def test_relative_and_home_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert normalise("./llama") == f"file://{tmp_path}/llama"
    assert normalise(".") == f"file://{tmp_path}"
    assert normalise("~/llama") == "file:///home/someone/llama"


def test_existing_directory_wins_over_a_repository_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise("org/name") == "hf://org/name"
    (tmp_path / "org/name").mkdir(parents=True)
    assert normalise("org/name") == f"file://{tmp_path}/org/name"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("a/b/c", "neither a path that exists nor the name of a model"),
        ("gs://bucket/llama", "the scheme gs:// is unknown"),
        ("https://example.org/org/name", "the scheme https:// is unknown"),
        ("https://huggingface.co/org/name", "is a page of the hub: give hf://org/name"),
        ("https://huggingface.co/org/name/tree/main", "give hf://org/name"),
        ("huggingface.co/org/name", "give hf://org/name"),
        ("qwen3:0.6b", "is a name of Ollama, whose registry is not read"),
        ("hf://qwen3:0.6b", "such as hf://ORG/qwen3-GGUF:Q4_K_M"),
        ("library/qwen3:0.6b", "such as hf://ORG/qwen3-GGUF:Q4_K_M"),
        ("org/name:", "write a quantisation such as Q4_K_M after the colon"),
        ("org/name:a b", "write a quantisation such as Q4_K_M after the colon"),
        ("hf.co/org/Qwen3-GGUF:Q4_K_M", "is a page of the hub: give hf://org/Qwen3-GGUF:Q4_K_M"),
        ("https://huggingface.co/org/x/blob/main/x-Q8_0.gguf", "page of the hub: give hf://org/x:x-Q8_0.gguf"),
        ("https://huggingface.co/org/x/resolve/main/a/x.gguf?download=true", "give hf://org/x:x.gguf"),
        ("gs://bucket/a:b", "the scheme gs:// is unknown"),
        ("file://models/llama", "file:///path"),
        ("demo://llama", "without a name"),
        ("hf://", "hf://org/name"),
        ("hf://a/b/c", "hf://org/name"),
        ("hf://../name", "hf://org/name"),
        ("hf://org/na me", "hf://org/name"),
        ("hf://org/name@", "branch, tag or commit after the @"),
        ("org/name@", "branch, tag or commit after the @"),
    ],
)
def test_what_names_no_model_is_refused_with_what_would(text: str, said: str) -> None:
    with pytest.raises(HubError) as refused:
        normalise(text)
    assert said in str(refused.value)


@pytest.mark.parametrize("repository", ["gpt2", "org/name"])
@pytest.mark.parametrize("page", ["", "/", "/tree/main", "/blob/main/config.json", "?library=vllm", "#use"])
def test_page_of_the_hub_names_its_repository(repository: str, page: str) -> None:
    with pytest.raises(HubError, match=f": give hf://{repository}$"):
        normalise(f"https://huggingface.co/{repository}{page}")


def test_file_source_is_the_directory_itself(tmp_path: Path) -> None:
    assert fetch(f"file://{tmp_path}", weights=True) == tmp_path


def test_directory_with_several_models_in_gguf_lists_their_files(tmp_path: Path) -> None:
    for name in ("b-Q8_0.gguf", "a-Q4_K_M.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelNotFound, match=r"has 2 models in GGUF: give one .* a-Q4_K_M.gguf, b-Q8_0.gguf"):
        fetch(f"file://{tmp_path}", weights=True)


def test_gguf_file_without_its_other_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x-00002-of-00003.gguf"
    file.touch()
    with pytest.raises(HubError, match=f"^{tmp_path} lacks 2 of the parts of x: download it again"):
        fetch(f"file://{file}", weights=True)


def test_missing_directory_and_plain_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        fetch(f"file://{tmp_path}/nothing", weights=True)
    file = tmp_path / "model.txt"
    file.touch()
    with pytest.raises(HubError, match="is a file: give the directory"):
        fetch(f"file://{file}", weights=True)


def test_source_that_was_not_normalised_is_refused() -> None:
    with pytest.raises(HubError, match="not a model source"):
        fetch("org/name", weights=False)


def test_demo_model_is_in_the_package() -> None:
    assert (fetch("demo://", weights=True) / "config.json").exists()


class TestClaim:
    @pytest.fixture(autouse=True)
    def volume(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("kvasir.hub.source.MODEL_DIRECTORY", str(tmp_path))
        (tmp_path / "qwen").mkdir()
        return tmp_path

    def test_a_claim_is_the_directory_that_pods_mount(self, volume: Path) -> None:
        assert normalise("pvc://models/qwen") == "pvc://models/qwen"
        assert fetch("pvc://models/qwen", weights=True) == volume / "qwen"
        assert fetch("pvc://models", weights=False) == volume

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("pvc://models/llama", "the claim models has no llama"),
            ("pvc://models/../etc", "write pvc://claim/path"),
            ("pvc://", "write pvc://claim/path"),
        ],
    )
    def test_a_wrong_path_on_a_claim_is_named(self, source: str, words: str) -> None:
        with pytest.raises(HubError, match=words):
            fetch(source, weights=False)

    def test_a_claim_is_for_pods_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kvasir.hub.source.MODEL_DIRECTORY", "/nowhere")
        with pytest.raises(HubError, match="only the pods of an InferenceService mount"):
            normalise("pvc://models/qwen")
