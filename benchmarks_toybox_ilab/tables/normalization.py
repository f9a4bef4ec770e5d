"""How images are normalised for networks that were trained on ImageNet."""

# Of the colour channels of its training set, in units where white is 1, as published
# with torchvision's classification weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
