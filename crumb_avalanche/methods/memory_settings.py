"""Settings of the methods with a memory of images, maps or codes. Imports neither torch nor Avalanche."""

from dataclasses import dataclass

from crumb_avalanche.system.setting_ranges import InRange


@dataclass(frozen=True)
class GEMSettings(InRange):
    """Settings of GEM.

    Attributes:
        margin: least weight of each past gradient in a corrected step, ``memory_strength`` of GEM's authors (0.5; the
            paper's port: 1).
    """

    margin: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.margin < 0:
            raise ValueError(f"margin is {self.margin}, but must not be negative")


@dataclass(frozen=True)
class ICaRLSettings(InRange):
    """Settings of iCaRL; its only other one is the number of exemplars, which the budget sets.

    Attributes:
        half_old_network: keep the old network as float16; see ``OldNetwork``.
    """

    half_old_network: bool = True


@dataclass(frozen=True)
class BiCSettings(InRange):
    """Settings of BiC.

    Attributes:
        temperature: temperature of the distillation.
        validation_share: share of a class's exemplars that only the bias stage uses; at least one.
        bias_epochs: steps of the bias stage, each over the whole validation set.
        bias_learning_rate: learning rate of Adam in that stage, divided by ten after each quarter of the steps. (The
            authors use SGD with this rate; Adam's steps do not depend on the scale of the logits, which the feature
            scale sets here.)
        bias_decay: weight of ``beta ** 2 / 2`` in the loss of that stage.
        half_old_network: keep the old network as float16; see ``OldNetwork``.
    """

    temperature: float = 2.0
    validation_share: float = 0.1
    bias_epochs: int = 200
    bias_learning_rate: float = 0.1
    bias_decay: float = 0.1
    half_old_network: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but must be above 0")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share is {self.validation_share}, but must be between 0 and 1")
        if self.bias_epochs < 1:
            raise ValueError(f"bias_epochs is {self.bias_epochs}, but must be 1 or more")
        if not self.bias_learning_rate > 0:
            raise ValueError(f"bias_learning_rate is {self.bias_learning_rate}, but must be above 0")
        if not self.bias_decay >= 0:
            raise ValueError(f"bias_decay is {self.bias_decay}, but must not be negative")


@dataclass(frozen=True)
class GSSSettings(InRange):
    """Settings of GSS-greedy.

    Attributes:
        compared: number of random memories whose gradients are compared with those of a frame.
        head_only: use the gradient of the head only, not of all plastic layers. Saves time and, within a step, memory:
            4 bytes a weight for each frame of a batch and each memory that is compared.
        chunk: gradients computed at a time.
    """

    compared: int = 10
    head_only: bool = False
    chunk: int = 32

    def __post_init__(self):
        super().__post_init__()
        for name in ("compared", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 1 or more")


@dataclass(frozen=True)
class CoPESettings(InRange):
    """Settings of CoPE.

    Attributes:
        prototype_momentum: weight of the old prototype in an update.
        temperature: divisor of similarities.
        random_prototypes: initialise prototypes at random, as the authors' code does, instead of with the mean of the
            class in its first batch. A stream has a few dozen batches of a class: with a momentum of 0.99, a random
            prototype stays mostly random, and predictions stay near chance.
    """

    prototype_momentum: float = 0.99
    temperature: float = 0.1
    random_prototypes: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.prototype_momentum <= 1:
            raise ValueError(f"prototype_momentum is {self.prototype_momentum}, but must be from 0 to 1")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but must be above 0")


@dataclass(frozen=True)
class AANetsSettings(InRange):
    """Settings of AANets on iCaRL's loss, with the authors' values except where they fail in a single pass.

    Attributes:
        outer_every: inner steps between two updates of the share of the stable branch; there is at least one update in
            an experience.
        a_learning_rate: learning rate of these updates (the authors' 1e-8, for many epochs, hardly changes it here).
        distillation: weight of the distillation loss; 0 keeps no old network, so the budget holds more images.
        temperature: temperature of the distillation.
        half_old_network: keep the old network as float16.
        count_stable_branch: charge the second branch to the budget, since no other method has one (1.05 MB at
            SqueezeNet's cut: a budget of 15 images then holds 4 exemplars). Off: it counts as part of the network, as
            in the paper.
    """

    outer_every: int = 50
    a_learning_rate: float = 1e-2
    distillation: float = 0.25
    temperature: float = 2.0
    half_old_network: bool = True
    count_stable_branch: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.outer_every < 1:
            raise ValueError(f"outer_every is {self.outer_every}; it counts inner steps: give 1 or more")
        if self.a_learning_rate < 0 or self.distillation < 0:
            raise ValueError(
                f"a_learning_rate is {self.a_learning_rate} and distillation is {self.distillation}; give 0 or more"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}, but must be above 0")


@dataclass(frozen=True)
class RemindSettings(InRange):
    """Settings of REMIND.

    Attributes:
        sub_quantizers: groups of channels, each with a table; the largest divisor of C up to this number is used.
        centroids: rows of a table; at most 16 for groups of 1 channel (4 bits per value).
        fit_vectors: number of locations of the first experience's maps to fit k-means on (256 per centroid, the most
            that faiss uses); held from the last epoch of that experience until the fit, ``4 * C`` bytes each.
        samples_at_a_time: take one optimiser step per new image, with ``replays`` memories, as the authors do, instead
            of one per batch of the stream, with ``batch_replays`` memories for each new image.
        replays: memories per new image with ``samples_at_a_time``.
        batch_replays: memories per new image without it; with 2, a step costs about as much as CRUMB's two. The loss
            is the mean over all rows in both cases.
        crop_scale: smallest share of a map's area that a crop keeps; 1 turns cropping off.
        mixup_alpha: parameter of the Beta distribution of the mixing weight; 0 turns mixup off.
        weight_decay: weight decay of SGD.
        decay_per_class: decay the learning rate with the number of images of the new image's class: from
            ``rate_start``, geometrically every ``rate_step`` images, to ``rate_end`` after ``rate_images`` (and
            further), instead of using the learning rate of all strategies as in the CRUMB paper's port.
    """

    sub_quantizers: int = 32
    centroids: int = 256
    fit_vectors: int = 65_536
    samples_at_a_time: bool = False
    replays: int = 50
    batch_replays: int = 2
    crop_scale: float = 4 / 13
    mixup_alpha: float = 0.1
    weight_decay: float = 1e-5
    decay_per_class: bool = False
    rate_start: float = 0.1
    rate_end: float = 0.001
    rate_step: int = 100
    rate_images: int = 1300

    def __post_init__(self):
        super().__post_init__()
        for name in ("sub_quantizers", "fit_vectors", "replays", "batch_replays", "rate_step", "rate_images"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")
        if not 2 <= self.centroids <= 256:
            raise ValueError(f"centroids is {self.centroids}; a code is one byte, so give 2 to 256")
        if not 0 < self.crop_scale <= 1:
            raise ValueError(f"crop_scale is {self.crop_scale}; it is a share of the map: above 0, at most 1 (no crop)")
        if self.mixup_alpha < 0 or self.weight_decay < 0:
            raise ValueError(
                f"mixup_alpha={self.mixup_alpha}, weight_decay={self.weight_decay}: neither can be negative (0: none)"
            )
        if not 0 < self.rate_end <= self.rate_start:
            raise ValueError(
                f"rate_end={self.rate_end} and rate_start={self.rate_start}: rates are positive and decay, so give a "
                "rate_end up to rate_start"
            )

    @property
    def replays_per_image(self) -> int:
        """Number of memories per new image."""
        return self.replays if self.samples_at_a_time else self.batch_replays

    def quantizer(self, model):
        """Build an unfitted ``ProductQuantizer`` for a model's maps."""
        from crumb_avalanche.methods.remind_memory import make_quantizer

        return make_quantizer(model.map_shape[0], self.sub_quantizers, self.centroids)


@dataclass(frozen=True)
class RainbowSettings(InRange):
    """Settings of Rainbow Memory, with its authors' values.

    Attributes:
        copies: perturbed copies of a candidate that vote on its uncertainty.
        candidates: frames of each class that are scored after an experience, evenly spread over it. F runs on every
            copy of each; the authors score every frame.
        memory_epochs: epochs over the memory after each experience (5 in the paper's comparison; the authors use 256).
        cutmix: probability of mixing a batch in these epochs.
        stream_rate: factor of the learning rate while training on the stream after the first experience.
    """

    copies: int = 12
    candidates: int = 25
    memory_epochs: int = 5
    cutmix: float = 0.5
    stream_rate: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if self.copies < 1 or self.candidates < 1:
            raise ValueError(f"copies is {self.copies} and candidates is {self.candidates}; give 1 or more")
        if self.memory_epochs < 0:
            raise ValueError(f"memory_epochs is {self.memory_epochs}; give 0 or more")
        if not 0 <= self.cutmix <= 1:
            raise ValueError(f"cutmix is {self.cutmix}; it is a probability: give 0 to 1")
        if self.stream_rate < 0:
            raise ValueError(f"stream_rate is {self.stream_rate}; give 0 or more")


@dataclass(frozen=True)
class MemoryRecallSettings(InRange):
    """Settings of Memory Recall.

    Attributes:
        per_channel: store a mean and a deviation for each channel (4,104 bytes per class at 512), instead of for each
            value of the map as in the paper (692,232 bytes per class at 512x13x13: 15 images buy 3 classes).
        clamp: set negative draws to 0 if the class never had a negative value (maps after a ReLU), instead of keeping
            them as in the paper.
    """

    per_channel: bool = True
    clamp: bool = True

    def values(self, model) -> int:
        """Return the number of means of one class."""
        channels, height, width = model.map_shape
        return channels if self.per_channel else channels * height * width


@dataclass(frozen=True)
class ExperienceReplaySettings(InRange):
    """Settings of experience replay (ER).

    Attributes:
        ring_below: with fewer memories than this for each class of the stream, each class has a ring buffer of its
            latest images, else all share a reservoir, in which a rare class may have none. The authors advise rings for
            tiny memories, and compare 1 to 13 memories a class. With fewer memories than classes, and with 0, it is
            always the reservoir.
    """

    ring_below: int = 5

    def __post_init__(self):
        super().__post_init__()
        if self.ring_below < 0:
            raise ValueError(f"ring_below is {self.ring_below}; it counts memories of a class: give 0 or more")


@dataclass(frozen=True)
class DarkReplaySettings(InRange):
    """Settings of DER++, with its authors' values.

    Attributes:
        alpha: weight of the loss of the stored logits.
        beta: weight of the loss of the stored labels; 0 is plain DER.
        evaluation_logits: store the logits of the network in evaluation mode, after the step of their batch, instead of
            those of the step itself, whose dropout the network would then have to reproduce.
    """

    alpha: float = 0.1
    beta: float = 0.5
    evaluation_logits: bool = True

    def __post_init__(self):
        super().__post_init__()
        if min(self.alpha, self.beta) < 0:
            raise ValueError(f"alpha is {self.alpha} and beta is {self.beta}; give 0 or more")
