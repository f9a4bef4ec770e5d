"""The network in two halves, its backbones, weights and runtimes, and the codebook."""
