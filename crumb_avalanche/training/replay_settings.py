"""Settings of CRUMB's losses and replay: their ranges and defaults. Imports neither torch nor Avalanche."""

from dataclasses import dataclass
from typing import Annotated

from crumb_avalanche.system.setting_ranges import InRange, NotNegative, Range

Weight = NotNegative | None
Steps = Annotated[int, Range(0, 10**4)]
Compute = Annotated[float, Range(0, 1000, above=True)]


@dataclass(frozen=True)
class Replay(InRange):
    """Replay from a memory; every default of these names is taken from here.

    Attributes:
        replay_weight: factor of the replay loss; ``None`` is what ``factor`` says.
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        replay_compute: cost of replay in units of the training step without it, instead
            of ``replay_steps``; all classes are replayed alike (see
            ``BalancedReplay``).
        fused: new and replayed batch in one optimiser step instead of two.
        selection_rule: which images are stored: every_jth, reservoir or reference.
    """

    replay_weight: Weight = None
    replay_steps: Steps = 1
    replay_compute: Compute | None = None
    fused: bool = False
    selection_rule: str = "every_jth"

    @property
    def factor(self) -> float:
        """Factor of the replay loss: 5 where none is given, as in all published scripts, or 1 with ``replay_compute``.

        The paper does not name the factor. With ``replay_compute``, classes weigh the
        same without it.
        """
        usual = 5.0 if self.replay_compute is None else 1.0
        return usual if self.replay_weight is None else self.replay_weight


@dataclass(frozen=True)
class ReplaySettings(Replay):
    """Losses and replay of CRUMB.

    Attributes:
        direct_weight: alpha of eq. 3, the weight of the loss on unquantized maps.
        codebook_weight: beta of eq. 3, the weight of the loss on quantized maps.
    """

    direct_weight: NotNegative = 0.0
    codebook_weight: NotNegative = 1.0
