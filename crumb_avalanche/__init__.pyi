"""The exported names, for `__init__.py`, type checkers and editors."""

from .learner.learner import Learner as Learner
from .memory.buffers import CodeBuffer as CodeBuffer
from .memory.buffers import ImageBuffer as ImageBuffer
from .memory.buffers import MapBuffer as MapBuffer
from .memory.selection import (
    ClassBalancedReservoir as ClassBalancedReservoir,
)
from .memory.selection import EveryJth as EveryJth
from .memory.selection import ReferenceRule as ReferenceRule
from .methods.registry import build_strategy as build_strategy
from .methods.registry import (
    recommended_strategy as recommended_strategy,
)
from .models.calibration import calibrate as calibrate
from .models.codebook import Codebook as Codebook
from .models.networks import SmallCNN as SmallCNN
from .models.split_at import split_at as split_at
from .models.split_backbone import split_backbone as split_backbone
from .models.split_model import SplitModel as SplitModel
from .models.weights import load_weights as load_weights
from .serve.hub import from_pretrained as from_pretrained
from .serve.hub import push_to_hub as push_to_hub
from .training.crumb import CRUMBPlugin as CRUMBPlugin
from .training.crumb import CRUMBStrategy as CRUMBStrategy
from .training.feature_cache import FeatureCache as FeatureCache
from .training.ledger import LedgerMetric as LedgerMetric
from .training.plugins import ClampGradients as ClampGradients
from .training.plugins import DivergenceGuard as DivergenceGuard
from .training.plugins import EpochSchedule as EpochSchedule
from .training.plugins import SeenClassesPlugin as SeenClassesPlugin
from .training.pretraining import pretrain as pretrain
from .training.stream_strategy import StreamStrategy as StreamStrategy

__version__: str
