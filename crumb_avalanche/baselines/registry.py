"""Name -> ready strategy on a ``SplitModel``, at a byte budget that is the same for all.

Every entry says what it stores and how many memories a budget buys.
"""

from dataclasses import dataclass

import torch

from crumb_avalanche.crumb import CRUMBStrategy
from crumb_avalanche.split_model import SplitModel
from crumb_avalanche.storage_policy import CodeBuffer, CompactBuffer, ImageBuffer, MapBuffer
from crumb_avalanche.storage_rules import RULES, StorageRule
from crumb_avalanche.streaming import StreamStrategy


@dataclass(frozen=True)
class LearningSettings:
    """What a strategy needs to know besides its model.

    Attributes:
        learning_rate, momentum, weight_decay: of SGD over all weights that learn, the codebook included.
        batch_size, eval_batch_size, first_epochs, epochs, clamp_gradients: see ``StreamStrategy``.
        direct_weight, codebook_weight, replay_weight, replay_steps, fused: see ``CRUMBPlugin``.
        storing_rule: a name in ``storage_rules.RULES``.
        freeze_codebook: whether the memory blocks stay as initialised.
    """

    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch_size: int = 21
    eval_batch_size: int = 128
    first_epochs: int = 10
    epochs: int = 1
    clamp_gradients: float | None = None
    direct_weight: float = 0.0
    codebook_weight: float = 1.0
    replay_weight: float = 1.0
    replay_steps: int = 1
    fused: bool = False
    storing_rule: str = "every_jth"
    freeze_codebook: bool = False


@dataclass(frozen=True)
class Entry:
    """One strategy of the registry.

    Attributes:
        summary: one line for the list.
        buffer: what it stores its memories in, or ``None``.
        codebook: whether its model has a codebook.
        joint: whether it is trained on all classes at once, shuffled (a bound, no stream learner).
        losses: overrides of the loss weights.
    """

    summary: str
    buffer: type[CompactBuffer] | None = None
    codebook: bool = False
    joint: bool = False
    losses: tuple[float, float] | None = None


DIRECT = (1.0, 0.0)
STRATEGIES: dict[str, Entry] = {
    "crumb": Entry("codes of memory blocks, decoded and replayed (this paper)", CodeBuffer, codebook=True),
    "image_replay": Entry("raw uint8 images, replayed through the whole network", ImageBuffer, losses=DIRECT),
    "map_replay": Entry("raw float32 feature maps, replayed", MapBuffer, losses=DIRECT),
    "finetune": Entry("nothing; plastic layers learn each batch and forget (lower bound)"),
    "offline": Entry("nothing; all classes at once, shuffled, every epoch (upper bound)", joint=True),
}


def get_strategy(name: str) -> Entry:
    """The entry of a strategy.

    Raises:
        ValueError: unknown name; the known are listed.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy {name!r} is unknown; known are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def memories_in_budget(entry: Entry, model: SplitModel, budget_bytes: int) -> int:
    """How many memories a budget buys (supplement, S5).

    Codes: ``(budget - n * d) / bytes of one coded map``, the codebook counting one byte a value as in the paper; a last
    memory is granted if three quarters of it fit, which gives the paper's 417, 834, 2,782 and 278,342 for 15, 30, 100
    and 10,000 images. Images and maps: budget / bytes of one, rounded down.

    Raises:
        ValueError: not even one memory fits.
    """
    if entry.buffer is None:
        return 0
    codebook = model.codebook.blocks.numel() if entry.codebook else 0
    item = entry.buffer.item_bytes(model)
    slack = item // 4 if entry.codebook else 0
    count = (budget_bytes - codebook + slack) // item
    if count < 1:
        raise ValueError(
            f"a budget of {budget_bytes} bytes holds no memory of {item} bytes"
            f"{f' beside a codebook of {codebook}' if codebook else ''}; raise --budget-images or --budget-bytes"
        )
    return count


def build_strategy(
    name: str, model: SplitModel, settings: LearningSettings, mem_size: int, seed: int, device: str = "cpu", **host
) -> StreamStrategy:
    """A strategy ready to train.

    Args:
        name: in ``STRATEGIES``.
        model: with a codebook where the entry says so.
        settings: see ``LearningSettings``.
        mem_size: capacity of the buffer, in memories.
        seed: of the buffer's random draws.
        device: as for every Avalanche strategy.
        host: ``plugins``, ``evaluator`` and so on, for Avalanche.
    """
    entry = get_strategy(name)
    model = model.to(device)
    if model.codebook is not None:
        model.codebook.requires_grad_(not settings.freeze_codebook)
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    common = dict(
        model=model,
        optimizer=optimizer,
        clamp_gradients=settings.clamp_gradients,
        first_epochs=settings.first_epochs,
        train_epochs=settings.epochs,
        train_mb_size=settings.batch_size,
        eval_mb_size=settings.eval_batch_size,
        device=device,
        **host,
    )
    if entry.buffer is None:
        return StreamStrategy(**common)
    direct, codebook = entry.losses or (settings.direct_weight, settings.codebook_weight)
    return CRUMBStrategy(
        storage_policy=entry.buffer(mem_size, make_rule(settings.storing_rule), seed),
        direct_weight=direct,
        codebook_weight=codebook,
        replay_weight=settings.replay_weight,
        replay_steps=settings.replay_steps,
        fused=settings.fused,
        **common,
    )


def make_rule(name: str) -> StorageRule:
    """A new storing rule by name.

    Raises:
        ValueError: unknown name; the known are listed.
    """
    if name not in RULES:
        raise ValueError(f"storing rule {name!r} is unknown; known are {', '.join(RULES)}")
    return RULES[name]()
