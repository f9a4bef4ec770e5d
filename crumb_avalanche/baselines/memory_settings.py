"""Settings of the methods with a memory of images, maps or codes. Imports neither torch nor Avalanche."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GEMSettings:
    """Settings of GEM.

    Attributes:
        margin: least weight of each past gradient in a corrected step, ``memory_strength`` of GEM's authors (0.5; the
            paper's port: 1).
    """

    margin: float = 0.5

    def __post_init__(self):
        if self.margin < 0:
            raise ValueError(f"margin is {self.margin}, but must not be negative")


@dataclass(frozen=True)
class ICaRLSettings:
    """Own settings of iCaRL; the paper has none besides the number of exemplars, which is the budget.

    Attributes:
        half_old_network: keep the old network as float16; see ``OldNetwork``.
    """

    half_old_network: bool = True


@dataclass(frozen=True)
class BiCSettings:
    """Own settings of BiC.

    Attributes:
        temperature: of the distillation.
        validation_share: of a class's exemplars, kept from the network's training for the bias stage; at least one.
        bias_epochs: steps of the bias stage, each over the whole validation set.
        bias_learning_rate: of Adam there, divided by ten after each quarter of the steps. (The authors use SGD with
            this rate; Adam's steps do not depend on the scale of the logits, which the feature scale sets here.)
        bias_decay: weight of ``beta ** 2 / 2`` in that stage's loss.
        half_old_network: keep the old network as float16; see ``OldNetwork``.
    """

    temperature: float = 2.0
    validation_share: float = 0.1
    bias_epochs: int = 200
    bias_learning_rate: float = 0.1
    bias_decay: float = 0.1
    half_old_network: bool = True

    def __post_init__(self):
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
class GSSSettings:
    """Own settings of GSS-greedy.

    Attributes:
        compared: random memories whose gradients a frame's gradient is compared with.
        head_only: take the gradient of the head alone, not of all plastic layers. Saves time and, for the length of a
            step, memory: 4 bytes a weight for each frame of a batch and each memory that is compared with.
        chunk: gradients that are computed at once.
    """

    compared: int = 10
    head_only: bool = False
    chunk: int = 32

    def __post_init__(self):
        for name in ("compared", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 1 or more")


@dataclass(frozen=True)
class CoPESettings:
    """Own settings of CoPE.

    Attributes:
        prototype_momentum: share of the old prototype that a batch leaves.
        temperature: that similarities are divided by.
        random_prototypes: start a prototype at random, as the authors' code does; else at the mean of its class in the
            first batch with it. A stream has a few dozen batches of a class: with a momentum of 0.99 most of a random
            start would still be there when the class is over, and the answer to it next to chance.
    """

    prototype_momentum: float = 0.99
    temperature: float = 0.1
    random_prototypes: bool = False

    def __post_init__(self):
        if not 0 <= self.prototype_momentum <= 1:
            raise ValueError(f"prototype_momentum is {self.prototype_momentum}, but must be from 0 to 1")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but must be above 0")


@dataclass(frozen=True)
class AANetsSettings:
    """Settings of AANets on iCaRL's loss, with its authors' values where they can be kept in a single pass.

    Attributes:
        outer_every: inner steps between two updates of the share of the stable branch; one at least an experience.
        a_learning_rate: of these updates (the authors' 1e-8, in many epochs, hardly moves it).
        distillation: weight of the distillation loss; with 0 there is no old network, and the budget buys more images.
        temperature: of the distillation.
        half_old_network: keep the old network as float16.
        count_stable_branch: take the second branch out of the budget (1.05 MB at SqueezeNet's cut: 15 images leave 4
            exemplars), for no other method has it. Off: it is a part of the network, as in the paper, and the ledger
            has it there.
    """

    outer_every: int = 50
    a_learning_rate: float = 1e-2
    distillation: float = 0.25
    temperature: float = 2.0
    half_old_network: bool = True
    count_stable_branch: bool = True

    def __post_init__(self):
        if self.outer_every < 1:
            raise ValueError(f"outer_every={self.outer_every}: there is at least 1 inner step between two updates")
        if self.a_learning_rate < 0 or self.distillation < 0:
            raise ValueError(
                f"a_learning_rate={self.a_learning_rate}, distillation={self.distillation}: rates and weights are not "
                "negative"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature}: it is above 0")


@dataclass(frozen=True)
class RemindSettings:
    """Settings of REMIND.

    Attributes:
        sub_quantizers: groups of channels with a table each; the largest divisor of C up to this is taken.
        centroids: rows of a table; of 1-channel groups at most 16 (4 bits a value).
        fit_vectors: locations of first-experience maps that k-means sees (256 a centroid, where faiss too would stop);
            they are held from the last epoch of that experience until the fit, ``4 * C`` bytes each.
        samples_at_a_time: one optimiser step for each new image, with ``replays`` memories, as the authors have it;
            off: one step for each batch of the stream, with ``batch_replays`` memories for each new image.
        replays: memories mixed with one new image, where samples come one at a time.
        batch_replays: the same, where they come in batches; 2 make a step cost about as much as CRUMB's two. The loss
            is the mean over all rows in both.
        crop_scale: smallest share of a map's area that a crop keeps; 1 turns cropping off.
        mixup_alpha: of the Beta distribution of the mixing weight; 0 turns mixup off.
        weight_decay: of SGD.
        decay_per_class: whether the learning rate decays with the number of images of the new image's class: from
            ``rate_start``, geometrically every ``rate_step`` images, to ``rate_end`` after ``rate_images`` (and on).
            Off: the learning rate of all strategies, as in the CRUMB paper's port.
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
        return self.replays if self.samples_at_a_time else self.batch_replays

    def quantizer(self, model):
        """An empty ``ProductQuantizer`` for a model's maps."""
        from crumb_avalanche.baselines.remind_memory import make_quantizer

        return make_quantizer(model.map_shape[0], self.sub_quantizers, self.centroids)


@dataclass(frozen=True)
class RainbowSettings:
    """Settings of Rainbow Memory, with its authors' values.

    Attributes:
        copies: perturbed copies of a candidate that vote on its uncertainty.
        candidates: frames of each class of an experience that are scored, evenly spread over it. F runs on each copy
            of each; the authors score every frame.
        memory_epochs: epochs over the memory after each experience (5 in the paper's comparison; the authors have 256).
        cutmix: chance of a batch of these to be mixed.
        stream_rate: factor of the rate while frames of later experiences are seen for the first time.
    """

    copies: int = 12
    candidates: int = 25
    memory_epochs: int = 5
    cutmix: float = 0.5
    stream_rate: float = 0.1

    def __post_init__(self):
        if self.copies < 1 or self.candidates < 1:
            raise ValueError(f"copies={self.copies}, candidates={self.candidates}: there is at least 1 of each")
        if self.memory_epochs < 0:
            raise ValueError(f"memory_epochs={self.memory_epochs}: it is 0 or more")
        if not 0 <= self.cutmix <= 1:
            raise ValueError(f"cutmix={self.cutmix}: a probability from 0 to 1")
        if self.stream_rate < 0:
            raise ValueError(f"stream_rate={self.stream_rate}: a factor of the rate is not negative")


@dataclass(frozen=True)
class MemoryRecallSettings:
    """Settings of Memory Recall.

    Attributes:
        per_channel: a mean and a deviation for each channel (4,104 bytes a class at 512); off: for each value of the
            map, as the paper has it (692,232 bytes a class at 512x13x13, so that 15 images buy 3 classes).
        clamp: negative draws become 0 where the class never had a negative value (maps behind a ReLU); off: the
            paper's, which leaves them.
    """

    per_channel: bool = True
    clamp: bool = True

    def values(self, model) -> int:
        """Means of one class."""
        channels, height, width = model.map_shape
        return channels if self.per_channel else channels * height * width


@dataclass(frozen=True)
class DarkReplaySettings:
    """Settings of DER++, with its authors' values.

    Attributes:
        alpha: weight of the difference to the stored logits.
        beta: weight of the loss of the stored labels; 0 is plain DER.
    """

    alpha: float = 0.1
    beta: float = 0.5

    def __post_init__(self):
        if min(self.alpha, self.beta) < 0:
            raise ValueError(f"alpha={self.alpha}, beta={self.beta}: weights of losses are not negative")
