"""The rows of the paper's Table 4, and one more, as changes of settings of the stream, of the start, or of both."""

from dataclasses import dataclass, field

# Maps that "Ours" stores in the ablations of the paper (published scripts). At 256x8 they take the bytes of 14, 29, 144
# and, on ImageNet, 3,593 images.
PUBLISHED_MEM_SIZES = {
    "core50": 200,
    "toybox": 200,
    "ilab": 200,
    "icub": 400,
    "ilab_core50": 400,
    "cifar100": 2000,
    "imagenet": 50_000,
}
MEM_SIZES = PUBLISHED_MEM_SIZES | {"eth80": 200, "toy_shapes": 60, "toy_shapes_short": 60}  # not in the paper

STOCK = "stock"  # no CRUMB pretraining: the network's own weights, a fresh codebook
OURS, WEIGHTS_OF_OURS, BLOCKS_OF_OURS = "ours", "ours_weights", "ours_blocks"

# The paper's Memory Recall has a Gaussian for each value of the map, and draws may be negative.
MEMORY_RECALL = {"per_channel": False, "clamp": False}


@dataclass(frozen=True)
class Ablation:
    """A row of the table.

    Attributes:
        category: category in the paper.
        name: name in the paper.
        stream: settings of `crumb run` that differ from "Ours".
        pretraining: settings of `crumb pretrain` that differ from "Ours". Those that `crumb run` shares are set in the
            stream too, so that without pretraining the codebook is initialised that way at the start of the stream.
        start: name of the pretrained file that the run starts from, or STOCK.
        capacity: number of memories / number of memories of "Ours".
        needs: kind of pretraining that the row requires; empty where it runs without.
        note: remark in the table.
    """

    category: str
    name: str
    stream: dict = field(default_factory=dict)
    pretraining: dict = field(default_factory=dict)
    start: str = OURS
    capacity: float = 1.0
    needs: str = ""
    note: str = ""

    @property
    def folder(self) -> str:
        """Name of the folder of its runs; rows that are "Ours" itself share its folder."""
        if (self.stream, self.pretraining, self.start, self.capacity) == ({}, {}, OURS, 1.0):
            return OURS
        spelt = self.name.lower().replace(" + ", " plus ").replace(" - ", " minus ")
        letters = "".join(letter if letter.isalnum() else "_" for letter in spelt)
        return "_".join(part for part in letters.split("_") if part)


def _blocks(count: int) -> Ablation:
    name = "1 block" if count == 1 else f"{count} blocks"
    return Ablation("Number of memory blocks", name, {}, dict(codebook_size=count), f"blocks_{count}")


def _length(length: int, adjusted: bool = False) -> Ablation:
    """A row of another block length, with the same number of maps or, adjusted, the same bytes."""
    name = f"{length}-dim. blocks{' adj.' if adjusted else ''}"
    capacity = length / 8 if adjusted else 1.0
    return Ablation("Memory block size", name, {}, dict(codebook_dim=length), f"length_{length}", capacity)


_FORMAT, _REPLAY, _PRETRAINING = "Replay format", "Replay ablation", "Pretraining ablation"
_INIT, _LOSS = "Memory block init.", "Loss functions"
_COUNT, _SIZE = "Number of memory blocks", "Memory block size"
_EARLY = dict(cut_layer=3)
_MOBILENET = dict(backbone="mobilenet_v2", relu_logits=False, head_kernel=1)

ROWS: tuple[Ablation, ...] = (
    Ablation("Unablated", "Ours"),
    Ablation(_FORMAT, "Image replay", dict(strategy="image_replay"), start=STOCK),
    Ablation(_FORMAT, "Ours p.t. + im. rep.", dict(strategy="image_replay"), needs="CRUMB pretraining"),
    Ablation(_FORMAT, "Early feature replay", {}, _EARLY, "early"),
    Ablation(_FORMAT, "MeRec replay", dict(strategy="memory_recall"), start=STOCK, note="one Gaussian a class"),
    Ablation(_REPLAY, "Half capacity", capacity=0.5),
    Ablation(_REPLAY, "Quarter capacity", capacity=0.25),
    Ablation(_REPLAY, "No replay", dict(replay_steps=0)),
    Ablation(_PRETRAINING, "Vanilla pretrain", start=STOCK),
    Ablation(_PRETRAINING, "Pretrain weights", start=WEIGHTS_OF_OURS, needs="CRUMB pretraining"),
    Ablation(_PRETRAINING, "Pretrain mem. blocks", start=BLOCKS_OF_OURS, needs="CRUMB pretraining"),
    Ablation(_PRETRAINING, "CIFAR100 pretrain", start="cifar100", needs="CRUMB pretraining on CIFAR-100"),
    Ablation(
        *(_PRETRAINING, "Tiny-ImageNet pretrain"),
        start="tiny_imagenet",
        needs="CRUMB pretraining on Tiny-ImageNet",
        note="not in the paper",
    ),
    Ablation("Freeze memory", "Freeze memory", dict(method=dict(freeze_codebook=True))),
    Ablation(_INIT, "Normal init.", {}, dict(codebook_init="normal"), "init_normal"),
    Ablation(_INIT, "Uniform init.", {}, dict(codebook_init="uniform"), "init_uniform"),
    Ablation(_INIT, "Dense matched init.", {}, dict(codebook_init="dense_matched"), "init_dense_matched"),
    _blocks(1),
    _blocks(2),
    _blocks(4),
    _blocks(8),
    _blocks(16),
    Ablation(_COUNT, "256 blocks"),
    _blocks(512),
    _length(4),
    Ablation(_SIZE, "8-dim. blocks"),
    _length(16),
    _length(32),
    _length(16, adjusted=True),
    _length(32, adjusted=True),
    Ablation(_LOSS, "Ours - direct loss", {}, dict(direct_weight=0.0), "no_direct_loss", needs="CRUMB pretraining"),
    Ablation(_LOSS, "Ours + direct loss", dict(method=dict(direct_weight=1.0))),
    Ablation(
        *(_LOSS, "Direct loss", dict(method=dict(direct_weight=1.0, codebook_weight=0.0))), note="replay is of codes"
    ),
    # 1,430 maps of 64x14x14 take the bytes of 200 of SqueezeNet's.
    Ablation("CNN architecture", "MobileNetV2 CNN", {}, _MOBILENET, "mobilenet_v2", 1430 / 200),
)
