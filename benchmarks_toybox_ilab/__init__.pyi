"""The exported names: read at run time by `__init__.py`, and by type checkers and editors."""

from benchmarks_toybox_ilab.catalog import BENCHMARKS as BENCHMARKS
from benchmarks_toybox_ilab.catalog import Benchmark as Benchmark
from benchmarks_toybox_ilab.catalog import get_benchmark as get_benchmark
from benchmarks_toybox_ilab.datasets.cifar100 import CIFAR100Frames as CIFAR100Frames
from benchmarks_toybox_ilab.datasets.cifar100 import OnlineCIFAR100 as OnlineCIFAR100
from benchmarks_toybox_ilab.datasets.clear import CLEAR as CLEAR
from benchmarks_toybox_ilab.datasets.clear import CLEARFrames as CLEARFrames
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolder as ClipFolder
from benchmarks_toybox_ilab.datasets.clip_folder import (
    ClipFolderFrames as ClipFolderFrames,
)
from benchmarks_toybox_ilab.datasets.core50 import CORe50 as CORe50
from benchmarks_toybox_ilab.datasets.core50 import CORe50Categories as CORe50Categories
from benchmarks_toybox_ilab.datasets.core50 import CORe50Frames as CORe50Frames
from benchmarks_toybox_ilab.datasets.eth80 import ETH80 as ETH80
from benchmarks_toybox_ilab.datasets.eth80 import ETH80Frames as ETH80Frames
from benchmarks_toybox_ilab.datasets.host_streams import frames_of as frames_of
from benchmarks_toybox_ilab.datasets.host_streams import from_capymoa as from_capymoa
from benchmarks_toybox_ilab.datasets.icub import ICub as ICub
from benchmarks_toybox_ilab.datasets.icub import ICubFrames as ICubFrames
from benchmarks_toybox_ilab.datasets.ilab import ILab as ILab
from benchmarks_toybox_ilab.datasets.ilab import ILabFrames as ILabFrames
from benchmarks_toybox_ilab.datasets.ilab_core50 import ILabCORe50 as ILabCORe50
from benchmarks_toybox_ilab.datasets.ilab_core50 import (
    ILabCORe50Frames as ILabCORe50Frames,
)
from benchmarks_toybox_ilab.datasets.imagenet import ImageNetFrames as ImageNetFrames
from benchmarks_toybox_ilab.datasets.imagenet import OnlineImageNet as OnlineImageNet
from benchmarks_toybox_ilab.datasets.openloris import OpenLORIS as OpenLORIS
from benchmarks_toybox_ilab.datasets.openloris import OpenLORISFrames as OpenLORISFrames
from benchmarks_toybox_ilab.datasets.orbit import ORBIT as ORBIT
from benchmarks_toybox_ilab.datasets.orbit import ORBITFrames as ORBITFrames
from benchmarks_toybox_ilab.datasets.stream51 import Stream51 as Stream51
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Frames as Stream51Frames
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Novel as Stream51Novel
from benchmarks_toybox_ilab.datasets.tiny_imagenet import TinyImageNet as TinyImageNet
from benchmarks_toybox_ilab.datasets.tiny_imagenet import (
    TinyImageNetFrames as TinyImageNetFrames,
)
from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapes as ToyShapes
from benchmarks_toybox_ilab.datasets.toy_shapes import (
    ToyShapesFrames as ToyShapesFrames,
)
from benchmarks_toybox_ilab.datasets.toybox import Toybox as Toybox
from benchmarks_toybox_ilab.datasets.toybox import ToyboxFrames as ToyboxFrames
from benchmarks_toybox_ilab.streams.orders import PROTOCOLS as PROTOCOLS
from benchmarks_toybox_ilab.streams.orders import PortableDraws as PortableDraws
from benchmarks_toybox_ilab.streams.orders import ReferenceDraws as ReferenceDraws
from benchmarks_toybox_ilab.streams.orders import StreamKeywords as StreamKeywords
from benchmarks_toybox_ilab.streams.protocols import FrameBenchmark as FrameBenchmark
from benchmarks_toybox_ilab.streams.protocols import make_benchmark as make_benchmark
from benchmarks_toybox_ilab.streams.protocols import plan_stream as plan_stream
from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset as FrameDataset
from benchmarks_toybox_ilab.streams.torch_dataset import (
    ImageNetTransform as ImageNetTransform,
)
from benchmarks_toybox_ilab.streams.torch_dataset import (
    PixelTransform as PixelTransform,
)
from benchmarks_toybox_ilab.streams.torch_dataset import (
    imagenet_transform as imagenet_transform,
)
from benchmarks_toybox_ilab.streams.torch_dataset import (
    normalize_pixels as normalize_pixels,
)
from benchmarks_toybox_ilab.streams.torch_dataset import (
    pixel_transform as pixel_transform,
)
from benchmarks_toybox_ilab.tables.frame import BadFrameError as BadFrameError
from benchmarks_toybox_ilab.tables.frame import Frame as Frame
from benchmarks_toybox_ilab.tables.frame import FrameTableError as FrameTableError
from benchmarks_toybox_ilab.tables.frame import natural_key as natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable as FrameTable
