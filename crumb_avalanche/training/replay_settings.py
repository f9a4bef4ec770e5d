"""Default settings of CRUMB's losses and replay. Imports neither torch nor Avalanche."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplaySettings:
    """Losses and replay of CRUMB; every default of these names is taken from here.

    Attributes:
        direct_weight: alpha of eq. 3, the weight of the loss on unquantized maps.
        codebook_weight: beta of eq. 3, the weight of the loss on quantized maps.
        replay_weight: factor of the replay loss; ``None`` is ``usual_replay_weight``.
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        replay_compute: cost of replay in units of the training step without it, instead of ``replay_steps``; all
            classes are replayed alike (see ``BalancedReplay``).
        fused: new and replayed batch in one optimiser step instead of two.
        selection_rule: which images are stored: every_jth, reservoir or reference.
    """

    direct_weight: float = 0.0
    codebook_weight: float = 1.0
    replay_weight: float | None = None
    replay_steps: int = 1
    replay_compute: float | None = None
    fused: bool = False
    selection_rule: str = "every_jth"


def usual_replay_weight(replay_compute: float | None) -> float:
    """Return the factor of the replay loss that all published scripts have, 5, or 1 with ``replay_compute``.

    The paper does not name the factor. With ``replay_compute``, classes weigh the same without it.
    """
    return 5.0 if replay_compute is None else 1.0
