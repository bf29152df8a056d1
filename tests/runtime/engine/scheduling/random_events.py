"""Random engines, and random events in their lives: arrivals, aborts, further attempts, resets of the cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from runtime.engine.fake_executor import EOS, next_token

LONGEST_PREFIX = 40
Machine = dict[str, Any]  # the arguments of a CoreHarness; `stages` of a StageRation, most `drafts`
Range = tuple[int, int]


def ends_at_times(token_ids: Sequence[int]) -> int:
    """A model that returns EOS after some contexts, so that requests end unexpectedly."""
    token_id = next_token(token_ids)
    return EOS if token_id % 16 == 0 else token_id


def machines(
    num_blocks: Range = (2, 30),
    block_size: Range = (1, 5),
    rows: Range = (1, 6),
    models: Sequence[Callable[[Sequence[int]], int]] = (next_token, ends_at_times),
) -> st.SearchStrategy[Machine]:
    """Engines with these ranges of sizes and every combination of features. `num_blocks` is per KV group."""
    window = st.integers(1, 24)
    several_groups = st.tuples(st.none(), window) | st.tuples(window) | st.tuples(st.none(), window, window)
    sizes: st.SearchStrategy[Machine] = st.fixed_dictionaries(
        {
            "num_blocks": st.integers(*num_blocks),
            "block_size": st.integers(*block_size),
            "max_num_seqs": st.integers(*rows),
            "budget": st.integers(rows[1], 40),
            "prefix_caching": st.booleans(),
            "by_priority": st.booleans(),
            "long_prefill_token_threshold": st.none() | st.integers(1, 12),
            "max_in_flight": st.integers(1, 4),
            "lookahead": st.sampled_from([None, None, 0, 1]),
            "stages": st.sampled_from([1, 1, 2, 3]),
            "drafts": st.sampled_from([0, 0, 1, 4]),
            "max_step_rows": st.sampled_from([0, 3, 8, 1000]),
            "model": st.sampled_from(models),
            "windows": st.just((None,)) | several_groups,
        }
    )
    return sizes.map(lambda machine: machine | {"num_blocks": machine["num_blocks"] * len(machine["windows"])})


@dataclass(frozen=True)
class Arrival:
    family: int
    """Prompts of one family begin with the same tokens."""
    shared: int
    own: int
    max_tokens: int
    priority: int
    emitted: int
    """Tokens that another engine emitted before."""
    reads_cache: bool
    salt: str
    hashed: bool
    fails_after: int | None = None
    """Output tokens after which the worker cannot prepare the sampling; None: it always can."""
    ready: bool = True
    """False: a gate skips it until a wake-up makes it ready."""
    alone: bool = False
    grammar: str = ""
    """Grammar of its output; "": it is not constrained."""
    compiled: bool = True
    """False: the grammar is compiled by a wake-up that makes the request ready."""

    def prompt(self, own_salt: int) -> list[int]:
        common = [1 + (self.family * 300 + i) % 900 for i in range(LONGEST_PREFIX)]
        return common[: self.shared] + [1 + (own_salt * 131 + i * 7) % 900 for i in range(self.own)]


def arrivals_of(
    shared: Range, own: Range, max_tokens: Range, fails_after: Sequence[int | None] = (None,)
) -> st.SearchStrategy[Arrival]:
    """Requests with these ranges of lengths."""
    return st.builds(
        Arrival,
        family=st.integers(0, 2),
        shared=st.integers(*shared),
        own=st.integers(*own),
        max_tokens=st.integers(*max_tokens),
        priority=st.integers(-2, 2),
        emitted=st.sampled_from([0, 0, 0, 5]),
        reads_cache=st.sampled_from([True, True, True, False]),
        salt=st.sampled_from(["", "", "tenant"]),
        hashed=st.booleans(),
        fails_after=st.sampled_from(fails_after),
        ready=st.sampled_from([True, True, False]),
        alone=st.sampled_from([False, False, False, True]),
        grammar=st.sampled_from(["", "", "", "a", "b", "c"]),
        compiled=st.sampled_from([True, True, False]),
    )


arrivals = arrivals_of((0, LONGEST_PREFIX), (0, 20), (1, 24), (None, None, None, 0, 1, 6))


@dataclass(frozen=True)
class AbortOf:
    index: int
    within_step: bool


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass(frozen=True)
class WakeOf:
    index: int
    ready: bool
    """False: it is woken too early."""


class Again(Enum):
    """How a frontend sends the AddRequest of a live request again."""

    NEXT = "as the next attempt, with the output so far"
    REFUSED_NEXT = "as the next attempt, which the engine refuses"
    SAME = "with the same attempt"
    REFUSED_SAME = "with the same attempt, which the engine refuses"


@dataclass(frozen=True)
class AgainOf:
    index: int
    how: Again
    within_step: bool


@dataclass(frozen=True)
class ResetCache:
    """A frontend asks for an empty prefix cache."""


Event = Arrival | AbortOf | AgainOf | ResetCache | Steps | WakeOf

wakes = st.builds(WakeOf, st.integers(0, 30), st.sampled_from([True, True, False]))
aborts = st.builds(AbortOf, st.integers(0, 30), st.booleans())
steps = st.builds(Steps, st.integers(1, 6))
agains = st.builds(
    AgainOf, st.integers(0, 30), st.sampled_from([Again.NEXT, Again.NEXT, Again.NEXT, *Again]), st.booleans()
)
resets = st.just(ResetCache())
events = st.lists(st.one_of(arrivals, arrivals, aborts, agains, resets, steps, wakes), min_size=1, max_size=40)

# Long outputs in small blocks outgrow the reserve for them: most of these runs preempt.
tight_machines = machines(num_blocks=(40, 60), block_size=(1, 2), rows=(4, 6), models=(next_token,))
crowds = st.lists(arrivals_of((2, 14), (0, 6), (10, 40), (None, None, None, 0, 1, 20)), min_size=4, max_size=12)
