"""transformers looks for accelerate when it is imported."""

import sys

from weights.real_models import READERS

sys.path.append(str(READERS))
