"""The network of the demo."""

from torch import nn


class SmallCNN(nn.Module):
    """Network for small images that trains from scratch in a minute on a CPU; the demo's backbone.

    Three convolutions with batch norm and pools (128 x 8 x 8 from 64 pixels), one without, and a linear layer. The
    plastic layers have no batch norm, whose statistics of a batch of one clip would be biased.

    Args:
        num_classes: number of outputs.
    """

    def __init__(self, num_classes: int = 10):
        super().__init__()
        blocks = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            blocks += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            blocks += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks, nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, images):
        """Compute logits ``(B, classes)`` of ``(B, 3, h, w)`` images.

        Args:
            images: normalised float32.
        """
        return self.classifier(self.pool(self.features(images)).flatten(1))
