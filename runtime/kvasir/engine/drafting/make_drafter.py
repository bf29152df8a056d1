"""Makes the drafter that the settings name."""

from kvasir.config.speculation import SUFFIX, Speculation
from kvasir.engine.drafting.adaptive_drafter import AdaptiveDrafter, GuessSource
from kvasir.engine.drafting.ngram_guesses import NgramGuesses
from kvasir.engine.drafting.suffix_guesses import SuffixGuesses, SuffixLimits
from kvasir.engine.scheduling.step_drafts import Drafter


def make_drafter(speculation: Speculation) -> Drafter:
    source: GuessSource
    if speculation.method == SUFFIX:
        source = SuffixGuesses(
            SuffixLimits(
                longest_match=speculation.suffix_decoding_max_tree_depth,
                tokens_per_matched=speculation.suffix_decoding_max_spec_factor,
                min_probability=speculation.suffix_decoding_min_token_prob,
                max_outputs=speculation.suffix_decoding_max_cached_requests,
            )
        )
    else:
        source = NgramGuesses(speculation.prompt_lookup_min, speculation.prompt_lookup_max)
    return AdaptiveDrafter(source, speculation.num_speculative_tokens)
