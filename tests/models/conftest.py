import pytest
import torch
from torch.utils.data import TensorDataset


@pytest.fixture
def images(pixels):
    """The six images of ``pixels``, numbered."""
    return TensorDataset(pixels, torch.arange(6))
