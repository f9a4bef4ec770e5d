"""CRUMB in one file of plain PyTorch: algorithm 1 of the paper, with its equations.

Talbot, Zawar, Badkundri, Zhang and Kreiman, "Tuned Compositional Feature Replays for
Efficient Stream Learning", IEEE TNNLS 36(2), 2025.

``python examples/crumb_plain.py`` draws clips of moving polygons, learns three tasks of
two classes, and prints the accuracy on all classes so far after each. The package lends
a network with its weights, nothing else; its ``CRUMBStrategy`` takes the same steps.

Axes of tensors: ``B`` images; ``C`` channels and ``H x W`` locations of a feature map;
``n`` memory blocks of ``d`` values; ``G = C / d`` slices at each location.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional

from crumb_avalanche import split_backbone


def initial_blocks(n: int, d: int, maps: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the codebook B, ``(n, d)``, with the distribution of maps ``(B, C, H, W)``.

    "Initializing the codebook matrix and CNN" says a simple univariate distribution and
    64 % zeros. The published code takes |N(0, 5/3 s)|, where s is the deviation of the
    positive values. Here s and the zeros are those of the maps; of maps with negative
    values it is N(0, s), where s is their deviation.
    """
    noise = torch.randn(n, d, generator=generator)
    if (maps < 0).any():
        return noise * maps.std()
    blocks = noise.abs() * 5 / 3 * maps[maps > 0].std()
    n_zeros = round(float((maps == 0).float().mean()) * n * d)
    blocks.view(-1)[torch.randperm(n * d, generator=generator)[:n_zeros]] = 0
    return blocks


@torch.no_grad()
def encode(maps: Tensor, blocks: Tensor) -> Tensor:
    """Find the most similar memory block of each slice of the maps (eq. 1 and 2).

    Returns the codes m, ``(B, G, H, W)`` uint8, which are all that is kept of an image.
    """
    slices = maps.unflatten(1, (-1, blocks.shape[1])).movedim(2, -1)  # (B, G, H, W, d)
    similarity = slices @ functional.normalize(blocks, dim=1).T  # eq. 1
    similarity[..., ~blocks.any(dim=1)] = -torch.inf  # a row of zeros has no direction
    return similarity.argmax(dim=-1).byte()  # eq. 2


def decode(codes: Tensor, blocks: Tensor) -> Tensor:
    """Rebuild maps Z~, ``(B, C, H, W)``, from codes ``(B, G, H, W)`` (eq. 2).

    A table lookup, so that the gradient of a loss of P(Z~) reaches the memory blocks
    that were looked up. The choice of the blocks has no gradient.
    """
    slices = blocks[codes.long()]  # (B, G, H, W, d)
    return slices.movedim(-1, 2).flatten(1, 2)


class ReplayBuffer:
    """The buffer X: at most ``capacity`` pairs of a label and the codes of an image.

    "Replay to mitigate catastrophic forgetting": each class seen has the same share.
    """

    def __init__(self, capacity: int, seed: int = 0):
        self.capacity = capacity
        self.random = np.random.default_rng(seed)
        self.by_class: dict[int, list[Tensor]] = {}  # label -> codes, each (G, H, W)

    def begin_task(self, labels: list[int]) -> None:
        """Count the images of a task, of which every j-th is to be stored."""
        self.n_images = Counter(labels)
        self.n_offered: Counter[int] = Counter()
        self.share = self.capacity // len(self.by_class.keys() | set(labels))

    def offer(self, codes: Tensor, labels: list[int]) -> None:
        """Store every j-th image of a class, j = its images / its share, unrounded."""
        for image_codes, label in zip(codes, labels):
            n_images = self.n_images[label]
            n_stored = min(self.share, n_images)
            n_before = self.n_offered[label] * n_stored // n_images
            self.n_offered[label] += 1
            if self.n_offered[label] * n_stored // n_images > n_before:
                self.make_room(label)
                self.by_class.setdefault(label, []).append(image_codes)

    def make_room(self, label: int) -> None:
        """Drop a random memory of a largest class if the buffer is full."""
        if sum(map(len, self.by_class.values())) < self.capacity:
            return
        largest = max(map(len, self.by_class.values()))
        victims = [key for key in self.by_class if len(self.by_class[key]) == largest]
        if label not in victims:
            label = victims[self.random.integers(len(victims))]
        memories = self.by_class[label]
        number = self.random.integers(len(memories))
        memories[number] = memories[-1]
        memories.pop()

    def sample(self, without: set[int], at_least: int) -> tuple[Tensor, Tensor]:
        """Draw as many memories of each class: ``(B, G, H, W)`` and ``(B,)`` labels."""
        classes = [label for label in self.by_class if label not in without]
        n_each = -(-at_least // len(classes))  # rounded up
        codes = []
        for label in classes:
            memories = self.by_class[label]
            drawn = self.random.integers(len(memories), size=n_each)
            codes += [memories[number] for number in drawn]
        return torch.stack(codes), torch.tensor(classes).repeat_interleave(n_each)


@dataclass
class Crumb:
    """Algorithm 1. A value that the paper does not name is that of its scripts.

    Attributes:
        extractor: F, images ``(B, 3, h, w)`` -> maps Z, ``(B, C, H, W)``; not trained.
        plastic: P, maps -> outputs ``(B, classes)``.
        blocks: B, ``(n, d)``; ``d`` divides ``C``.
        buffer: X.
        optimizer: over the weights of P and B.
        alpha, beta: weights of the direct and of the codebook-out loss in eq. 3.
        replay_weight: factor of the loss of a replay batch.
        batch_size: new images of a step.
        first_epochs: epochs of task 1; every later image is seen once.
        seen: classes of all tasks so far.
        losses: of all steps so far.
    """

    extractor: nn.Module
    plastic: nn.Module
    blocks: nn.Parameter
    buffer: ReplayBuffer
    optimizer: torch.optim.Optimizer
    alpha: float = 0.0
    beta: float = 1.0
    replay_weight: float = 5.0
    batch_size: int = 21
    first_epochs: int = 10
    seen: set[int] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Learn a task: ``(N, 3, h, w)`` images in their order, ``(N,)`` labels."""
        is_first_task = not self.seen
        epochs = self.first_epochs if is_first_task else 1
        self.seen.update(labels.tolist())
        self.buffer.begin_task(labels.tolist())
        for epoch in range(1, epochs + 1):
            for start in range(0, len(labels), self.batch_size):
                x = images[start : start + self.batch_size]
                y = labels[start : start + self.batch_size]
                codes = self.train_on_images(x, y)
                if not is_first_task:
                    self.train_on_memories(y)
                if epoch == epochs:
                    self.buffer.offer(codes, y.tolist())

    def train_on_images(self, x: Tensor, y: Tensor) -> Tensor:
        """Train P and the memory blocks in Z~ on new images; return their codes."""
        maps = self.features(x)
        codes = encode(maps, self.blocks)
        rebuilt = decode(codes, self.blocks)
        loss = self.beta * self.cross_entropy(rebuilt, y)  # eq. 3
        if self.alpha:
            loss = loss + self.alpha * self.cross_entropy(maps, y)
        self.step(loss)
        return codes

    def train_on_memories(self, y: Tensor) -> None:
        """Train P and the memory blocks on memories of classes that ``y`` lacks."""
        codes, labels = self.buffer.sample(set(y.tolist()), at_least=len(y))
        rebuilt = decode(codes, self.blocks)
        self.step(self.replay_weight * self.cross_entropy(rebuilt, labels))

    def step(self, loss: Tensor) -> None:
        """Take an optimiser step."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def features(self, images: Tensor) -> Tensor:
        """Return Z = F(images)."""
        with torch.no_grad():
            return self.extractor.eval()(images)

    def cross_entropy(self, maps: Tensor, labels: Tensor) -> Tensor:
        """Return L_CE(P(maps), labels) over the classes seen so far."""
        self.plastic.train()
        return functional.cross_entropy(self.classify(maps), labels)

    def classify(self, maps: Tensor) -> Tensor:
        """Return P(maps), ``(B, classes)``, -inf for classes that were not seen."""
        outputs = self.plastic(maps)
        unseen = torch.ones(outputs.shape[1], dtype=torch.bool)
        unseen[list(self.seen)] = False
        return outputs.masked_fill(unseen, -torch.inf)

    def predict(self, images: Tensor) -> Tensor:
        """Return the classes of images, ``(B,)``: P(Z), without the codebook."""
        self.plastic.eval()
        return self.classify(self.features(images)).argmax(dim=1)


def draw_clips(labels: list[int], seed: int) -> Tensor:
    """Draw ten frames of a polygon for each label: ``(frames, 3, 96, 96)``, -1 to 1."""
    random = np.random.default_rng(seed)
    frames = []
    for label in labels:
        n_sides = (3, 4, 12)[label // 2]
        width = (1, 40)[label % 2]  # an outline, or filled
        colour = tuple(random.integers(128, 256, size=3).tolist())
        for frame in range(10):
            x, y = random.uniform(34, 62, size=2)
            image = Image.new("RGB", (96, 96))
            ImageDraw.Draw(image).regular_polygon(
                (x, y, 32), n_sides, 5 * frame, outline=colour, width=width
            )
            frames.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    return torch.stack(frames) / 127.5 - 1


def main() -> None:
    """Learn three tasks of two classes; test on all classes so far after each."""
    torch.manual_seed(0)
    network = split_backbone("efficientnet_lite0", n_classes=6, codebook=False)
    extractor, plastic = network.feature_extractor, network.plastic_layers
    maps = extractor.eval()(draw_clips([0, 1], seed=0)).detach()
    blocks = nn.Parameter(initial_blocks(256, 16, maps, torch.Generator()))
    weights = [*plastic.parameters(), blocks]
    # The scripts have lr=1e-3, for streams of thousands of images.
    optimizer = torch.optim.SGD(weights, lr=1e-2, momentum=0.9, weight_decay=1e-4)
    crumb = Crumb(extractor, plastic, blocks, ReplayBuffer(417), optimizer)
    for first in (0, 2, 4):
        clips = [first, first + 1] * 6
        crumb.learn(draw_clips(clips, first), torch.tensor(clips).repeat_interleave(10))
        clips = list(range(first + 2)) * 3
        answers = crumb.predict(draw_clips(clips, seed=99))
        accuracy = (answers == torch.tensor(clips).repeat_interleave(10)).float().mean()
        print(f"{first + 2} classes: {accuracy:.1%}")


if __name__ == "__main__":
    main()
