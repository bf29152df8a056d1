"""The layers and parameters that a pipeline stage holds."""

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Neighbouring layers; the first stage adds the embedding, the last norm and head."""

    layers: range
    num_layers: int

    @staticmethod
    def of(num_layers: int, stage: int, stages: int) -> "Stage":
        """Raises ValueError for fewer layers than stages.

        >>> [len(Stage.of(10, stage, 4).layers) for stage in range(4)]
        [2, 3, 3, 2]
        """
        if num_layers < stages:
            raise ValueError(f"{num_layers} layers cannot be split into {stages} stages")
        size, more = divmod(num_layers, stages)
        sizes = [size] * stages
        for place in range(stages - 1 - more, stages - 1):
            sizes[place] += 1
        start = sum(sizes[:stage])
        return Stage(range(start, start + sizes[stage]), num_layers)

    @property
    def first(self) -> bool:
        return self.layers.start == 0

    @property
    def last(self) -> bool:
        return self.layers.stop == self.num_layers

    def holds(self, parameter: str, *, layers: str, first: Set[str], last: Set[str]) -> bool:
        """Return whether this stage has a parameter, such as layers.3.mlp.fc1.weight."""
        # All stages have unknown names, to reject them.
        part, _, rest = parameter.partition(".")
        if part in first or part in last:
            return (self.first and part in first) or (self.last and part in last)
        number = rest.partition(".")[0]
        if part != layers or not number.isdecimal():
            return True
        return int(number) in self.layers or int(number) >= self.num_layers
