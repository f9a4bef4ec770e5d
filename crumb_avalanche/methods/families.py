"""Settings of the paper's authors for each method: networks, resolutions and learning rates.

Two families of settings compare the methods. *paper* is this table, with the values of the published scripts. Its
networks differ in size, pretraining and image resolution, so its results say little about the methods themselves.
*fair* runs every method on the same frozen feature extractor and plastic layers at the same bytes, with a learning rate
tuned on the first experience (``lr_search.tune``).

Settings that only one method has are the defaults of its settings class, or in ``method`` if the defaults come from
another source.
"""

from dataclasses import asdict, dataclass, field, replace

from crumb_avalanche.training.replay_settings import ReplaySettings

FAMILIES = ("fair", "paper")


@dataclass(frozen=True)
class PaperSettings:
    """One row: settings of ``crumb run`` for a method.

    Attributes:
        backbone: network.
        cut_layer: number of frozen layers; 0 trains the whole network, ``None`` is the paper's cut.
        weights: ``"none"`` for an untrained network; ``None`` for the weights of the run.
        image_size: side of the images in pixels.
        learning_rate, momentum, weight_decay: arguments of SGD.
        batch_size: images per batch; ``None`` is the benchmark's (21 for video, 128 for images).
        first_epochs: epochs on the first experience.
        head_kernel, relu_logits: SqueezeNet's head.
        clamp_gradients, selection_rule: values of CRUMB's published code.
        method: settings of the method that differ from their defaults.
        on: changes by name of the benchmark.
    """

    backbone: str = "squeezenet1_0"
    cut_layer: int | None = 0
    weights: str | None = None
    image_size: int = 224
    learning_rate: float = 1e-4
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch_size: int | None = None
    first_epochs: int = 10
    head_kernel: int = 3
    relu_logits: bool = True
    clamp_gradients: float = 0.0
    selection_rule: str = ReplaySettings.selection_rule
    method: dict = field(default_factory=dict, hash=False)
    on: dict[str, dict] = field(default_factory=dict, hash=False)

    def for_benchmark(self, benchmark: str) -> dict:
        """Return the settings of ``crumb run`` on a benchmark."""
        values = {**asdict(self), **self.on.get(benchmark, {})}
        del values["on"], values["method"]
        return values

    def method_on(self, benchmark: str) -> dict:
        """Return the changed settings of the method on a benchmark."""
        return self.on.get(benchmark, {}).get("method", self.method)


# Small networks for small images; they start untrained and end in one linear layer.
_SMALL = dict(cut_layer=0, weights="none", image_size=32, head_kernel=1, relu_logits=False)
_IMAGES = {"cifar100": dict(batch_size=21), "imagenet": dict(batch_size=128, first_epochs=20, learning_rate=1e-3)}
_ONE_EPOCH = {name: dict(first_epochs=1) for name in ("toybox", "ilab")}
_SQUEEZENET = PaperSettings(on={**_IMAGES, **_ONE_EPOCH})
_HEAVY_ON_IMAGENET = {"imagenet": dict(_IMAGES["imagenet"], method=dict(weight=100.0))}
_EXEMPLARS = PaperSettings(
    on={
        **_IMAGES,
        **_ONE_EPOCH,
        "imagenet": dict(batch_size=128, first_epochs=10),
    }
)
_OFFLINE = PaperSettings(
    batch_size=128,
    first_epochs=5,
    method=dict(peak_rate=0.0),
    on={
        **{name: dict(batch_size=100) for name in ("toybox", "ilab")},
        "cifar100": dict(batch_size=100, first_epochs=10),
        "imagenet": dict(first_epochs=15, learning_rate=1e-3),
    },
)
# CRUMB's published code: F frozen, gradients clamped, replay loss times five.
_CRUMB = PaperSettings(cut_layer=None, learning_rate=1e-3, clamp_gradients=10.0, selection_rule="reference")
_GSS_TOYBOX = dict(backbone="slim_resnet18", batch_size=100, learning_rate=1e-4, first_epochs=15)

PAPER: dict[str, PaperSettings] = {
    "crumb": _CRUMB,
    "image_replay": _CRUMB,
    # One Gaussian per channel, as by default: the authors' Gaussians (per_channel and clamp false) take the bytes of
    # 4.6 images per class, more than the budgets here.
    "memory_recall": _CRUMB,
    "finetune": _SQUEEZENET,
    "offline": _OFFLINE,
    "ewc": _SQUEEZENET,
    "si": PaperSettings(on={**_IMAGES, **_ONE_EPOCH, **_HEAVY_ON_IMAGENET}),
    "mas": PaperSettings(on={**_IMAGES, **_ONE_EPOCH, **_HEAVY_ON_IMAGENET, "core50": dict(learning_rate=1e-3)}),
    "gem": replace(_SQUEEZENET, method=dict(margin=1.0)),
    "icarl": _EXEMPLARS,
    # One step per new image, with 50 memories, takes about six times as long as one step per batch.
    "remind": PaperSettings(
        cut_layer=None,
        learning_rate=1e-3,
        weight_decay=1e-5,
        batch_size=21,
        method=dict(samples_at_a_time=True, replays=50),
    ),
    "bic": PaperSettings(
        image_size=32,
        learning_rate=1e-3,
        weight_decay=2e-4,
        batch_size=128,
        first_epochs=15,
        method=dict(temperature=5.0),
        on={"ilab": dict(learning_rate=1e-4)},
    ),
    # The authors put attention modules (CBAM) into this network.
    "lwf": PaperSettings(
        backbone="resnet18",
        learning_rate=0.2,
        weight_decay=1e-5,
        batch_size=128,
        on={"toybox": dict(learning_rate=0.02), "cifar100": dict(first_epochs=20)},
        **_SMALL,
    ),
    "stable_sgd": PaperSettings(
        backbone="slim_resnet18",
        learning_rate=0.2,
        first_epochs=15,
        method=dict(batch_size=128, gamma=0.95),
        on={
            "cifar100": dict(learning_rate=0.15, first_epochs=25, method=dict(batch_size=64, gamma=0.99, dropout=0.05))
        },
        **_SMALL,
    ),
    "gss": PaperSettings(
        backbone="mlp",
        learning_rate=1e-3,
        batch_size=10,
        on={"toybox": _GSS_TOYBOX, "ilab": dict(batch_size=100, learning_rate=1e-4, first_epochs=15)},
        **_SMALL,
    ),
    "cope": PaperSettings(
        backbone="mlp", learning_rate=1e-3, batch_size=10, on={"cifar100": dict(backbone="slim_resnet18")}, **_SMALL
    ),
    "aanets": PaperSettings(
        backbone="resnet32", learning_rate=0.1, weight_decay=5e-4, batch_size=100, first_epochs=30, **_SMALL
    ),
    "rainbow_memory": PaperSettings(
        backbone="resnet32",
        learning_rate=0.008,
        batch_size=64,
        first_epochs=15,
        on={"core50": dict(learning_rate=0.004), "cifar100": dict(batch_size=16)},
        **{**_SMALL, "image_size": 128},
    ),
}


def paper_settings(strategy: str, benchmark: str) -> dict:
    """Return the settings of ``crumb run`` that the paper's authors used for a method.

    Raises:
        ValueError: they did not run the method.
    """
    if strategy not in PAPER:
        raise ValueError(
            f"the paper's authors did not run {strategy}, so the family 'paper' has no settings for it; they ran "
            f"{', '.join(PAPER)}. Use --family fair"
        )
    return PAPER[strategy].for_benchmark(benchmark)


def paper_method_settings(strategy: str, benchmark: str) -> dict:
    """Return the method's settings that the paper's authors changed from their defaults."""
    return PAPER[strategy].method_on(benchmark) if strategy in PAPER else {}
