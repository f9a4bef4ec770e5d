"""Online streams of video-like frames for Avalanche: data sets as tables of frames, and protocols that order them.

Names are loaded when first used, so the tables come without the seconds that importing torch and Avalanche takes.
"""

import importlib

_HOME = {
    "BENCHMARKS": "catalog",
    "PROTOCOLS": "catalog",
    "Benchmark": "catalog",
    "get_benchmark": "catalog",
    "ClipFolder": "clip_folder",
    "ClipFolderFrames": "clip_folder",
    "ETH80": "eth80",
    "ETH80Frames": "eth80",
    "BadFrameError": "frame_table",
    "Frame": "frame_table",
    "FrameTable": "frame_table",
    "FrameTableError": "frame_table",
    "natural_key": "frame_table",
    "FrameDataset": "frames",
    "ImageNetTransform": "frames",
    "PixelTransform": "frames",
    "imagenet_transform": "frames",
    "normalize_pixels": "frames",
    "pixel_transform": "frames",
    "FrameBenchmark": "protocols",
    "make_benchmark": "protocols",
    "plan_stream": "protocols",
    "ToyShapes": "toy_shapes",
    "ToyShapesFrames": "toy_shapes",
}

__all__ = [
    "BENCHMARKS",
    "ETH80",
    "PROTOCOLS",
    "BadFrameError",
    "Benchmark",
    "ClipFolder",
    "ClipFolderFrames",
    "ETH80Frames",
    "Frame",
    "FrameBenchmark",
    "FrameDataset",
    "FrameTable",
    "FrameTableError",
    "ImageNetTransform",
    "PixelTransform",
    "ToyShapes",
    "ToyShapesFrames",
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
