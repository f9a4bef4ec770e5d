"""Online streams of video frames for Avalanche: data sets as tables of frames, and protocols that order them.

Names are imported on first use, so tables can be used without importing torch and Avalanche, which takes seconds.
"""

import importlib

_HOME = {
    "BENCHMARKS": "catalog",
    "Benchmark": "catalog",
    "PROTOCOLS": "streams.orders",
    "get_benchmark": "catalog",
    "CIFAR100Frames": "datasets.cifar100",
    "OnlineCIFAR100": "datasets.cifar100",
    "ClipFolder": "datasets.clip_folder",
    "ClipFolderFrames": "datasets.clip_folder",
    "CORe50": "datasets.core50",
    "CORe50Frames": "datasets.core50",
    "ETH80": "datasets.eth80",
    "ETH80Frames": "datasets.eth80",
    "BadFrameError": "tables.frame",
    "Frame": "tables.frame",
    "FrameTableError": "tables.frame",
    "natural_key": "tables.frame",
    "FrameTable": "tables.frame_table",
    "FrameDataset": "streams.torch_dataset",
    "ImageNetTransform": "streams.torch_dataset",
    "PixelTransform": "streams.torch_dataset",
    "imagenet_transform": "streams.torch_dataset",
    "normalize_pixels": "streams.torch_dataset",
    "pixel_transform": "streams.torch_dataset",
    "ICub": "datasets.icub",
    "ICubFrames": "datasets.icub",
    "ILab": "datasets.ilab",
    "ILabFrames": "datasets.ilab",
    "ILabCORe50": "datasets.ilab_core50",
    "ILabCORe50Frames": "datasets.ilab_core50",
    "ImageNetFrames": "datasets.imagenet",
    "OnlineImageNet": "datasets.imagenet",
    "PortableDraws": "streams.orders",
    "ReferenceDraws": "streams.orders",
    "FrameBenchmark": "streams.protocols",
    "make_benchmark": "streams.protocols",
    "plan_stream": "streams.protocols",
    "TinyImageNet": "datasets.tiny_imagenet",
    "TinyImageNetFrames": "datasets.tiny_imagenet",
    "ToyShapes": "datasets.toy_shapes.benchmark",
    "ToyShapesFrames": "datasets.toy_shapes.benchmark",
    "Toybox": "datasets.toybox",
    "ToyboxFrames": "datasets.toybox",
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
    "TinyImageNet",
    "TinyImageNetFrames",
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
    globals()[name] = value  # later look-ups skip this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
