"""How images are normalised for networks that were trained on ImageNet."""

# Of each colour channel, in units where white is 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
