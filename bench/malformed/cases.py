"""The choice of a malformed request.

`case` returns the same case for the same arguments. Around a third are bodies with a wrong field, a
third are broken in their bytes, the rest break HTTP itself or hang up.
"""

import random
from collections.abc import Callable
from typing import Final

from bench.malformed.bodies import broken_json, odd_body, wrong_field
from bench.malformed.excess import template_bomb, too_many_members, too_many_values, too_much_around_a_body
from bench.malformed.protocol import broken_http, cut_off, hangs_up, noise, odd_headers, wrong_route
from bench.malformed.valid import BODIES, POOLING_BODIES, Case, Choices

KINDS: Final[list[tuple[Callable[[random.Random], Case], int]]] = [
    (wrong_field, 35),
    (broken_json, 20),
    (odd_body, 10),
    (wrong_route, 10),
    (broken_http, 8),
    (odd_headers, 6),
    (noise, 3),
    (cut_off, 4),
    (hangs_up, 4),
    (too_many_values, 1),
    (too_many_members, 1),
    (template_bomb, 2),
    (too_much_around_a_body, 2),
]


def case(seed: int, number: int, *, pooling: bool = False) -> Case:
    """`pooling`: for a service that makes vectors."""
    rng = Choices(f"{seed}/{number}", POOLING_BODIES if pooling else BODIES)
    make = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    return make(rng)
