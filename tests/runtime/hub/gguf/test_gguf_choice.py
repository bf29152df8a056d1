import pytest

from kvasir.hub.gguf.gguf_choice import choose_files, parts_of
from kvasir.hub.hub_errors import HubError

PARTS = [f"Q8_0/x-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
NAMES = [
    "README.md",
    "mmproj-x-F16.gguf",
    "x-Q4_K_M.gguf",
    "x-UD-Q4_K_M.gguf",
    "x.IQ4_XS.gguf",
    "imatrix.gguf",
    *PARTS,
]


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("Q4_K_M", ["x-Q4_K_M.gguf"]),
        ("q4_k_m", ["x-Q4_K_M.gguf"]),
        ("UD-Q4_K_M", ["x-UD-Q4_K_M.gguf"]),
        ("IQ4_XS", ["x.IQ4_XS.gguf"]),
        ("x-UD-Q4_K_M.gguf", ["x-UD-Q4_K_M.gguf"]),
        ("Q8_0", PARTS),
    ],
)
def test_choose_files_finds_a_quantisation(wanted: str, files: list[str]) -> None:
    assert choose_files(NAMES, wanted, "hf://org/x") == files


def test_choose_files_takes_the_only_model() -> None:
    assert choose_files(["mmproj-F16.gguf", *PARTS[::-1]], None, "hf://org/x") == PARTS


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        (NAMES, None, "has 4 models in GGUF: choose one of IQ4_XS, Q4_K_M, Q8_0, UD-Q4_K_M"),
        (NAMES, "Q2_K", "has no GGUF file Q2_K: choose one of IQ4_XS, Q4_K_M, Q8_0, UD-Q4_K_M"),
        (
            ["a-Q8_0.gguf", "b-Q8_0.gguf"],
            "Q8_0",
            "several GGUF files Q8_0: choose one by its name of a-Q8_0.gguf",
        ),
        (["README.md"], None, "has no GGUF file of a model"),
        (PARTS[1:], "Q8_0", "lacks 1 of the parts of Q8_0/x-Q8_0: download it again"),
    ],
)
def test_choose_files_lists_what_is_there(names: list[str], wanted: str | None, said: str) -> None:
    with pytest.raises(HubError) as refused:
        choose_files(names, wanted, "hf://org/x")
    assert said in str(refused.value)


def test_parts_of_a_file_are_found_by_any_of_them() -> None:
    assert parts_of(PARTS[1], NAMES) == PARTS
    assert parts_of("x-Q4_K_M.gguf", NAMES) == ["x-Q4_K_M.gguf"]
