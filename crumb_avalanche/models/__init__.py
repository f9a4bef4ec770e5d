"""The network, the codebook and what they are built from."""
