"""Online streams of video-like frames for Avalanche: data sets as tables of frames, and protocols that order them.

Names are loaded when first used, so the tables come without the seconds that importing torch and Avalanche takes.
"""

import importlib

_HOME = {
    "BENCHMARKS": "catalog",
    "Benchmark": "catalog",
    "PROTOCOLS": "catalog",
    "get_benchmark": "catalog",
    "CIFAR100Frames": "cifar100",
    "OnlineCIFAR100": "cifar100",
    "ClipFolder": "clip_folder",
    "ClipFolderFrames": "clip_folder",
    "CORe50": "core50",
    "CORe50Frames": "core50",
    "ETH80": "eth80",
    "ETH80Frames": "eth80",
    "BadFrameError": "frame",
    "Frame": "frame",
    "FrameTableError": "frame",
    "natural_key": "frame",
    "FrameTable": "frame_table",
    "FrameDataset": "frames",
    "ImageNetTransform": "frames",
    "PixelTransform": "frames",
    "imagenet_transform": "frames",
    "normalize_pixels": "frames",
    "pixel_transform": "frames",
    "ICub": "icub",
    "ICubFrames": "icub",
    "ILab": "ilab",
    "ILabFrames": "ilab",
    "ILabCORe50": "ilab_core50",
    "ILabCORe50Frames": "ilab_core50",
    "ImageNetFrames": "imagenet",
    "OnlineImageNet": "imagenet",
    "PortableDraws": "orders",
    "ReferenceDraws": "orders",
    "FrameBenchmark": "protocols",
    "make_benchmark": "protocols",
    "plan_stream": "protocols",
    "ToyShapes": "toy_shapes",
    "ToyShapesFrames": "toy_shapes",
    "Toybox": "toybox",
    "ToyboxFrames": "toybox",
}

__all__ = [
    "BENCHMARKS",
    "ETH80",
    "PROTOCOLS",
    "BadFrameError",
    "Benchmark",
    "CIFAR100Frames",
    "CORe50",
    "CORe50Frames",
    "ClipFolder",
    "ClipFolderFrames",
    "ETH80Frames",
    "Frame",
    "FrameBenchmark",
    "FrameDataset",
    "FrameTable",
    "FrameTableError",
    "ICub",
    "ICubFrames",
    "ILab",
    "ILabCORe50",
    "ILabCORe50Frames",
    "ILabFrames",
    "ImageNetFrames",
    "ImageNetTransform",
    "OnlineCIFAR100",
    "OnlineImageNet",
    "PixelTransform",
    "PortableDraws",
    "ReferenceDraws",
    "ToyShapes",
    "ToyShapesFrames",
    "Toybox",
    "ToyboxFrames",
    "get_benchmark",
    "imagenet_transform",
    "make_benchmark",
    "natural_key",
    "normalize_pixels",
    "pixel_transform",
    "plan_stream",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
