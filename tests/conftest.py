"""One thread, the same random numbers in each test, and no deadline.

No test depends on the machine or the order.
"""

import gc
import json
import os
import random
import re

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
os.environ["CRUMB_RUNTIME"] = "torch"  # what --runtime auto takes, instead of a trial

from pathlib import Path

import numpy as np
import pytest
import small_models
import torch
from flags import flags
from hypothesis import HealthCheck, settings
from PIL import Image

from crumb_avalanche.cli import main
from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.system.tensor_file import write_tensors

torch.set_num_threads(1)

CLASSES = ("apple", "box", "cup", "dice")

# The same examples in every run; pytest --hypothesis-profile explore  draws others, and
# more of them.
slow_machine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", max_examples=40, derandomize=True, **slow_machine)
settings.register_profile("explore", max_examples=400, **slow_machine)
settings.load_profile("same")


# No wait for the disk, of which a run has 22: no test cuts the power. A closed file is
# an error as in fsync.
os.fsync = os.fstat


def pytest_collection_finish(session):
    gc.collect()
    # A run collects garbage at its end: with the objects of all libraries and tests in
    # 0.3 s, else in 0.02 s.
    gc.freeze()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        # A forked worker that collects a decoded frame or an ONNX session waits for
        # threads that it lacks.
        gc.collect()


def pytest_runtest_setup(item):
    # A command that a test before ran may have set its own number.
    torch.set_num_threads(1)
    # Alike, whichever tests ran before in this process.
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def no_collector():
    """Garbage is collected on request."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def make_model():
    """A function that builds the small ``SplitModel``."""
    return small_models.make_model


@pytest.fixture(scope="session")
def make_stream():
    """A function that builds the small benchmark.

    Strategies may change theirs, so each gets its own.
    """
    return small_models.make_stream


@pytest.fixture
def model():
    return small_models.make_model()


@pytest.fixture(scope="session")
def pixels():
    """A batch of 6 images, ``(6, 3, 16, 16)`` ``uint8``."""
    size = (6, 3, small_models.SIZE, small_models.SIZE)
    return torch.randint(
        0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    """Random weights, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = SmallCNN().state_dict()
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    write_tensors(file, state, {})
    return file


@pytest.fixture(scope="session")
def clips(tmp_path_factory) -> Path:
    """4 classes x 3 objects x 2 clips x 5 frames of 32 pixels.

    Each class has its own pattern, each frame its noise.
    """
    root = tmp_path_factory.mktemp("clips")
    rows, columns = np.mgrid[:32, :32]
    patterns = [
        rows % 8 < 4,
        columns % 8 < 4,
        (rows + columns) % 12 < 6,
        (rows // 8 + columns // 8) % 2 == 0,
    ]
    noise = np.random.default_rng(0)
    for name, pattern in zip(CLASSES, patterns):
        for clip in range(6):
            folder = root / name / f"object{clip // 2}" / f"clip{clip % 2}"
            folder.mkdir(parents=True)
            for frame in range(5):
                pixels = (
                    60 + 120 * pattern[..., None] + noise.integers(0, 60, (32, 32, 3))
                )
                Image.fromarray(pixels.astype(np.uint8)).save(
                    folder / f"frame{frame}.png"
                )
    return root


@pytest.fixture
def crumb(capsys):
    """Call the command line.

    ``crumb("run", ...)`` gives (exit code, standard output, standard error).
    """

    def call(*arguments) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def done(crumb):
    """Call a command that ends well; ``done("report", ...)`` gives what it prints."""

    def call(*arguments) -> str:
        code, out, err = crumb(*arguments)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def refused(crumb):
    """Call a command that says what is wrong.

    ``refused(words, "report", ...)`` gives its standard error.
    """

    def call(words, *arguments) -> str:
        code, _, err = crumb(*arguments)
        assert (
            code in (1, 2)
            and re.search(words, err, re.DOTALL)
            and "Traceback" not in err
        ), (arguments, err)
        return err

    return call


@pytest.fixture
def ran(done, tiny):
    """Do a run of a second.

    ``ran(folder, "--strategy", "ncm")`` gives its result and what it printed.
    """

    def call(output, *more) -> tuple[dict, str]:
        out = done(*tiny, "--output", output, *more)
        return json.loads((output / "result.json").read_text()), out

    return call


@pytest.fixture(scope="session")
def tiny(clips) -> list[str]:
    """The command of a run that takes a second."""
    settings = flags(
        benchmark="clip_folder",
        dataset_root=clips,
        preset="paper",
        weights="none",
        backbone="small_cnn",
        image_size=32,
        batch_size=8,
        first_epochs=2,
        threads=1,
        progress=False,
    )
    return ["run", *settings]
