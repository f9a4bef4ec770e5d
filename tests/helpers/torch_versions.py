"""Marks for tests of what older versions of torch cannot do."""

import pytest
import torch
from packaging.version import Version

WITH_TRANSFORMERS = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.9"), reason="torch.fx traces timm's vision transformers from torch 2.9 on"
)
