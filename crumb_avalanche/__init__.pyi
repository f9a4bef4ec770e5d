"""The exported names, for `__init__.py`, type checkers and editors."""

from crumb_avalanche.connect.hub import from_pretrained as from_pretrained
from crumb_avalanche.connect.hub import push_to_hub as push_to_hub
from crumb_avalanche.learner.learner import Learner as Learner
from crumb_avalanche.memory.buffers import CodeBuffer as CodeBuffer
from crumb_avalanche.memory.buffers import ImageBuffer as ImageBuffer
from crumb_avalanche.memory.buffers import MapBuffer as MapBuffer
from crumb_avalanche.memory.selection import (
    ClassBalancedReservoir as ClassBalancedReservoir,
)
from crumb_avalanche.memory.selection import EveryJth as EveryJth
from crumb_avalanche.memory.selection import ReferenceRule as ReferenceRule
from crumb_avalanche.methods.registry import build_strategy as build_strategy
from crumb_avalanche.methods.registry import (
    recommended_strategy as recommended_strategy,
)
from crumb_avalanche.models.backbones import split_backbone as split_backbone
from crumb_avalanche.models.calibration import calibrate as calibrate
from crumb_avalanche.models.codebook import Codebook as Codebook
from crumb_avalanche.models.networks import SmallCNN as SmallCNN
from crumb_avalanche.models.split_at import split_at as split_at
from crumb_avalanche.models.split_model import SplitModel as SplitModel
from crumb_avalanche.models.weights import load_weights as load_weights
from crumb_avalanche.training.crumb import CRUMBPlugin as CRUMBPlugin
from crumb_avalanche.training.crumb import CRUMBStrategy as CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache as FeatureCache
from crumb_avalanche.training.ledger import LedgerMetric as LedgerMetric
from crumb_avalanche.training.plugins import ClampGradients as ClampGradients
from crumb_avalanche.training.plugins import DivergenceGuard as DivergenceGuard
from crumb_avalanche.training.plugins import EpochSchedule as EpochSchedule
from crumb_avalanche.training.plugins import SeenClassesPlugin as SeenClassesPlugin
from crumb_avalanche.training.pretraining import pretrain as pretrain
from crumb_avalanche.training.stream_strategy import StreamStrategy as StreamStrategy

__version__: str
