"""The exported names, for `__init__.py`, type checkers and editors."""

from .catalog import BENCHMARKS as BENCHMARKS
from .catalog import Benchmark as Benchmark
from .catalog import get_benchmark as get_benchmark
from .datasets.cifar100 import CIFAR100Frames as CIFAR100Frames
from .datasets.cifar100 import OnlineCIFAR100 as OnlineCIFAR100
from .datasets.clear import CLEAR as CLEAR
from .datasets.clear import CLEARFrames as CLEARFrames
from .datasets.clip_folder import ClipFolder as ClipFolder
from .datasets.clip_folder import (
    ClipFolderFrames as ClipFolderFrames,
)
from .datasets.core50 import CORe50 as CORe50
from .datasets.core50 import CORe50Categories as CORe50Categories
from .datasets.core50 import CORe50Frames as CORe50Frames
from .datasets.eth80 import ETH80 as ETH80
from .datasets.eth80 import ETH80Frames as ETH80Frames
from .datasets.host_streams import frames_of as frames_of
from .datasets.host_streams import from_capymoa as from_capymoa
from .datasets.icub import ICub as ICub
from .datasets.icub import ICubFrames as ICubFrames
from .datasets.ilab import ILab as ILab
from .datasets.ilab import ILabFrames as ILabFrames
from .datasets.ilab_core50 import ILabCORe50 as ILabCORe50
from .datasets.ilab_core50 import (
    ILabCORe50Frames as ILabCORe50Frames,
)
from .datasets.imagenet import ImageNetFrames as ImageNetFrames
from .datasets.imagenet import OnlineImageNet as OnlineImageNet
from .datasets.openloris import OpenLORIS as OpenLORIS
from .datasets.openloris import OpenLORISFrames as OpenLORISFrames
from .datasets.orbit import ORBIT as ORBIT
from .datasets.orbit import ORBITFrames as ORBITFrames
from .datasets.stream51 import Stream51 as Stream51
from .datasets.stream51 import Stream51Frames as Stream51Frames
from .datasets.stream51 import Stream51Novel as Stream51Novel
from .datasets.tiny_imagenet import TinyImageNet as TinyImageNet
from .datasets.tiny_imagenet import (
    TinyImageNetFrames as TinyImageNetFrames,
)
from .datasets.toy_shapes import ToyShapes as ToyShapes
from .datasets.toy_shapes import (
    ToyShapesFrames as ToyShapesFrames,
)
from .datasets.toybox import Toybox as Toybox
from .datasets.toybox import ToyboxFrames as ToyboxFrames
from .streams.orders import PROTOCOLS as PROTOCOLS
from .streams.orders import PortableDraws as PortableDraws
from .streams.orders import ReferenceDraws as ReferenceDraws
from .streams.orders import StreamKeywords as StreamKeywords
from .streams.protocols import FrameBenchmark as FrameBenchmark
from .streams.protocols import make_benchmark as make_benchmark
from .streams.protocols import plan_stream as plan_stream
from .streams.torch_dataset import FrameDataset as FrameDataset
from .streams.torch_dataset import (
    ImageNetTransform as ImageNetTransform,
)
from .streams.torch_dataset import (
    PixelTransform as PixelTransform,
)
from .streams.torch_dataset import (
    imagenet_transform as imagenet_transform,
)
from .streams.torch_dataset import (
    normalize_pixels as normalize_pixels,
)
from .streams.torch_dataset import (
    pixel_transform as pixel_transform,
)
from .tables.frame import BadFrameError as BadFrameError
from .tables.frame import Frame as Frame
from .tables.frame import FrameTableError as FrameTableError
from .tables.frame import natural_key as natural_key
from .tables.frame_table import FrameTable as FrameTable
