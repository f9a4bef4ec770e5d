"""Settings of CRUMB's losses and replay: their ranges and defaults.

Imports neither torch nor Avalanche.
"""

from dataclasses import dataclass
from typing import Annotated

from crumb_avalanche.system.setting_ranges import InRange, NotNegative, Range

Weight = NotNegative | None
Steps = Annotated[int, Range(0, 10**4)]
Limit = Annotated[int, Range(1, 10**6)]
Compute = Annotated[float, Range(0, 1000, above=True)]
# Of all published scripts; the paper does not name it.
PUBLISHED_WEIGHT = 5.0


@dataclass(frozen=True)
class Replay(InRange):
    """Replay from a memory; every default of these names is taken from here.

    Attributes:
        replay_weight: factor of the replay loss; ``None`` is what ``factor`` says.
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        replay_limit: largest number of memories in a replay batch, so that its cost
            does not grow with the number of classes; ``None`` replays at least one
            memory of every class.
        replay_compute: cost of replay in units of the training step without it, instead
            of ``replay_steps``; all classes are replayed alike (see
            ``BalancedReplay``).
        fused: new and replayed batch in one optimiser step instead of two.
        selection_rule: which images are stored: every_jth, reservoir or reference.
    """

    replay_weight: Weight = None
    replay_steps: Steps = 1
    replay_limit: Limit | None = None
    replay_compute: Compute | None = None
    fused: bool = False
    selection_rule: str = "every_jth"

    @property
    def factor(self) -> float:
        """Factor of the replay loss.

        Where none is given, 5 as in all published scripts, or 1 with
        ``replay_compute``, in which all classes weigh the same without it.
        """
        if self.replay_weight is not None:
            return self.replay_weight
        if self.replay_compute is not None:
            return 1.0
        return PUBLISHED_WEIGHT


@dataclass(frozen=True)
class ReplaySettings(Replay):
    """Losses and replay of CRUMB.

    Attributes:
        direct_weight: alpha of eq. 3, the weight of the loss on unquantized maps.
        codebook_weight: beta of eq. 3, the weight of the loss on quantized maps.

    Raises:
        ValueError: both weights are 0, or ``replay_compute`` comes with ``fused`` or
            ``replay_limit``.
    """

    direct_weight: NotNegative = 0.0
    codebook_weight: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direct_weight + self.codebook_weight == 0:
            raise ValueError(
                "direct_weight and codebook_weight are both 0; "
                "one of the losses must be on"
            )
        if self.replay_limit is not None and self.replay_compute is not None:
            raise ValueError(
                "replay_compute has batches of one size, whatever the number of "
                "classes: leave out replay_limit, or replay_compute"
            )
        if self.fused and self.replay_compute is not None:
            raise ValueError(
                "fused replay has one batch for each new one: "
                "leave out fused, or replay_compute"
            )
