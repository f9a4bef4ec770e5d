"""Online streams of video frames for Avalanche: data sets as tables of frames, and protocols that order them.

Names are imported on first use, so tables can be used without importing torch and Avalanche, which takes seconds.
"""

import importlib

_MODULES = {
    "tables.frame": ("BadFrameError", "Frame", "FrameTableError", "natural_key"),
    "tables.frame_table": ("FrameTable",),
    "streams.orders": ("PROTOCOLS", "PortableDraws", "ReferenceDraws"),
    "streams.protocols": ("FrameBenchmark", "make_benchmark", "plan_stream"),
    "streams.torch_dataset": (
        "FrameDataset",
        "ImageNetTransform",
        "PixelTransform",
        "imagenet_transform",
        "normalize_pixels",
        "pixel_transform",
    ),
    "datasets.cifar100": ("CIFAR100Frames", "OnlineCIFAR100"),
    "datasets.clip_folder": ("ClipFolder", "ClipFolderFrames"),
    "datasets.core50": ("CORe50", "CORe50Frames"),
    "datasets.eth80": ("ETH80", "ETH80Frames"),
    "datasets.icub": ("ICub", "ICubFrames"),
    "datasets.ilab": ("ILab", "ILabFrames"),
    "datasets.ilab_core50": ("ILabCORe50", "ILabCORe50Frames"),
    "datasets.imagenet": ("ImageNetFrames", "OnlineImageNet"),
    "datasets.tiny_imagenet": ("TinyImageNet", "TinyImageNetFrames"),
    "datasets.toy_shapes.benchmark": ("ToyShapes", "ToyShapesFrames"),
    "datasets.toybox": ("Toybox", "ToyboxFrames"),
    "catalog": ("BENCHMARKS", "Benchmark", "get_benchmark"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # later look-ups skip this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
