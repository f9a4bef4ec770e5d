"""An exported learner: a file that answers as the learner does, or no file."""

import json
import re
import shutil
import sys
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche.learner.export import (
    OUTPUTS,
    ExportError,
    Graph,
    Parity,
    Resize,
    export_onnx,
)
from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.predictor import NothingTaughtError

ETH80 = TEST_DATA / "eth80" / "eth80_128.zip"
WEIGHTS = TEST_DATA / "imagenet_weights" / "squeezenet1_0_deepcomp.npz"
COLOURS = np.random.default_rng(7).integers(0, 256, (8, 2, 2, 3))


def photos(number, count=6, seed=0, size=(32, 32)):
    """Noisy images of four patches whose colours belong to the class.

    ``(count, *size, 3)`` uint8.
    """
    random = np.random.default_rng(1000 * seed + number)
    height, width = size
    patches = COLOURS[number].repeat(height // 2, 0).repeat(width // 2, 1)
    noise = random.normal(0, 25, (count, *size, 3))
    return np.clip(patches + noise, 0, 255).astype(np.uint8)


def photos_of(numbers, count, seed, size):
    """``photos`` of several classes, one class after the other."""
    return np.concatenate([photos(number, count, seed, size) for number in numbers])


def taught(method, backbone="small_cnn", classes=5, image_size=32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FrozenNetwork.build(backbone, None, image_size)
    learner = Learner.__new__(Learner)
    learner._set_up(method, network, 9_000_000)
    for number in range(classes):
        learner.teach(photos(number, 3 + number), f"c{number}")
    return learner


def skip_without_onnx():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")


def session_of(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture(autouse=True)
def needs_onnx(request):
    if "without_onnx" not in request.keywords:
        skip_without_onnx()


# The same answers


def test_the_file_answers_as_the_learner_where_cells_share_rows(tmp_path):
    # Given a learner whose cells do not divide the rows of a map
    learner = taught("rda", image_size=40)
    assert learner.network.model.map_shape[1] % learner.features["cells"]
    # When its file is compared with it. Noise of other sizes would compare resizing as
    # well, where one level of a pixel may decide between two classes.
    images = list(photos_of(range(5), 4, 1, (40, 40)))
    parity = export_onnx(learner, tmp_path / "a.onnx", images)
    # Then both answer alike
    assert parity.holds
    assert parity.score_error < 1e-4


@dataclass
class Exported:
    """A learner of the classes ``names``, its graph, and the comparison of the two."""

    learner: Learner
    is_fitted: bool
    parity: Parity
    session: Any
    names = ("c0", "c1", "c3", "c4")

    def outputs(self, images):
        """What the graph answers: ``OUTPUTS``."""
        return self.session.run(list(OUTPUTS), {"images": images})

    def expected_scores(self, images):
        """The scores of the learner, ``(images, classes)``."""
        learner = self.learner
        classifier = learner._classifier
        resized = [learner._transform(Image.fromarray(image)) for image in images]
        features = learner._compute(torch.stack(resized), learner.looks_used)
        scores = classifier.evidence(features).scores.numpy()
        return scores * classifier.statistics.temperature


@pytest.fixture(scope="module", params=[False, True], ids=["bare", "fitted"])
def is_fitted(request):
    """Whether lessons of known classes fit temperature and threshold."""
    return request.param


@pytest.fixture(scope="module", params=CLOSED_FORMS)
def exported(request, is_fitted, tmp_path_factory):
    skip_without_onnx()
    learner = taught(request.param)
    if is_fitted:
        for seed in (3, 4):
            for number in range(5):
                learner.teach(photos(number, 3, seed), f"c{number}")
    learner.forget("c2")
    path = tmp_path_factory.mktemp("exported") / "a.onnx"
    images = list(photos_of(range(5), 4, 1, (40, 50)))
    parity = export_onnx(learner, path, images)
    return Exported(learner, is_fitted, parity, session_of(path))


def test_the_file_answers_as_the_learner(exported):
    assert exported.parity.holds
    assert exported.parity.images == 20
    assert exported.parity.score_error < 1e-4
    assert exported.parity.other_labels == 0
    assert exported.parity.probability_error < 1e-3


ALL_CLASSES = range(8)  # of which 0, 1, 3 and 4 are known


@pytest.mark.parametrize(
    ("size", "numbers"),
    [
        pytest.param((32, 32), ALL_CLASSES, id="32x32"),
        pytest.param((90, 44), [3], id="90x44"),
        pytest.param((20, 20), [1], id="20x20"),
        pytest.param((32, 120), [4], id="32x120"),
    ],
)
def test_scores_are_those_of_the_learner_for_any_size_and_batch(
    exported, size, numbers
):
    # Given photos of a size
    images = photos_of(numbers, 3, 6, size)
    # When the file and the learner answer
    scores, probabilities, known = exported.outputs(images)
    frames = exported.learner.predict(images).frames
    # Then types and shapes are those documented
    assert scores.dtype == np.float32
    assert probabilities.dtype == np.float32
    assert known.dtype == bool
    assert scores.shape == (len(images), 4)
    # And scores and labels are the same. Pillow may resize a tall image along its
    # height first: some pixels differ by one level.
    height, width = size
    expected = exported.expected_scores(images)
    tolerance = 5e-3 if height > width else 1e-4
    largest = np.abs(expected).max()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=tolerance * largest)
    labels = [exported.names[index] for index in scores.argmax(1)]
    assert labels == [frame.label for frame in frames]


def test_probabilities_are_those_of_the_learner(exported):
    images = photos_of(ALL_CLASSES, 3, 6, (32, 32))
    _, probabilities, _ = exported.outputs(images)
    frames = exported.learner.predict(images).frames
    for row, frame in zip(probabilities, frames, strict=True):
        by_name = {frame.label: frame.confidence, **dict(frame.runners_up)}
        expected = [by_name[name] for name in exported.names]
        np.testing.assert_allclose(row, expected, atol=1e-3)


def test_what_is_known_is_known_to_the_learner(exported):
    images = photos_of(ALL_CLASSES, 3, 6, (32, 32))
    _, _, known = exported.outputs(images)
    frames = exported.learner.predict(images).frames
    # It has no third value where the learner cannot tell.
    assert known.tolist() == [not frame.unknown for frame in frames]
    assert known.any()
    if exported.is_fitted:
        assert not known.all()


@pytest.mark.parametrize(
    "backbone",
    [
        "squeezenet1_0",
        pytest.param("mobilenet_v2", marks=pytest.mark.slow),
        pytest.param("resnet18", marks=pytest.mark.slow),
    ],
)
def test_every_backbone_can_be_exported(backbone, tmp_path):
    learner = taught("slda", backbone, classes=2)
    assert export_onnx(learner, tmp_path / "a.onnx").score_error < 1e-3


def test_the_metadata_name_classes_and_weights(tmp_path):
    # Given a learner with a renamed class
    learner = taught("ncm", classes=3)
    learner.rename("c2", "Stra\u00dfe")
    learner.forget("c1")
    # When it is exported
    export_onnx(learner, tmp_path / "a.onnx")
    session = session_of(tmp_path / "a.onnx")
    # Then the metadata say what the file is
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["c0", "Stra\u00dfe"]
    assert re.fullmatch("[0-9a-f]{64}", learner.network.sha256)
    assert metadata["weights_sha256"] == learner.network.sha256
    assert metadata["method"] == "ncm"
    assert metadata["backbone"] == "small_cnn"
    assert metadata["image_size"] == "32"
    # And the scores are in the order of the classes
    assert session.get_inputs()[0].shape == ["batch", "height", "width", 3]
    (scores,) = session.run(["scores"], {"images": photos(2, 1)})
    assert scores.shape == (1, 2)
    assert scores.argmax() == 1


@pytest.mark.parametrize(
    "size",
    [(32, 32), (64, 64), (20, 20), (100, 57), (57, 100), (300, 400), (1, 1), (5, 90)],
    ids=str,
)
def test_resizing_equals_pillow_within_a_level(size):
    # Given an image
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    # When the graph and Pillow resize it
    resized = Resize(32)(torch.from_numpy(image)[None])[0]
    expected = pixel_transform(32)(Image.fromarray(image))
    # Then both are equal, but for a level where the image is tall
    height, width = size
    allowed = 1 if height > width else 0
    assert (resized - expected).abs().max() <= allowed


# No file


@pytest.fixture
def wrong_graph(monkeypatch):
    """Graphs whose scores are 1% too large."""
    right = Graph.forward

    def forward(graph, images):
        scores, probabilities, known = right(graph, images)
        return 1.01 * scores, probabilities, known

    monkeypatch.setattr(Graph, "forward", forward)


@pytest.mark.usefixtures("wrong_graph")
def test_a_graph_that_answers_otherwise_leaves_no_file(tmp_path):
    words = r"no file is written.*scores differ by at most 1\.\de-02.*allowed 1e-03"
    with pytest.raises(ExportError, match=words):
        export_onnx(taught("ncm"), tmp_path / "new" / "a.onnx")
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("wrong_graph")
def test_a_graph_that_answers_otherwise_replaces_no_file(tmp_path):
    path = tmp_path / "b.onnx"
    path.write_bytes(b"before")
    with pytest.raises(ExportError):
        export_onnx(taught("ncm"), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"before"


CLOSE = {
    "one label of 500": Parity(500, 9e-4, 1),
    "one unknown": Parity(500, 0.0, 0, probability_error=9e-3, other_known=1),
}
FAR = {
    "scores": Parity(500, 2e-3, 0),
    "infinite scores": Parity(20, float("inf"), 0),
    "two labels of 500": Parity(500, 0.0, 2),
    "one label of 20": Parity(20, 0.0, 1),
    "probabilities": Parity(500, 0.0, 0, probability_error=2e-2, other_known=0),
    "two unknown": Parity(500, 0.0, 0, probability_error=0.0, other_known=2),
}


@pytest.mark.parametrize("parity", CLOSE.values(), ids=CLOSE)
def test_parity_within_the_tolerances(parity):
    assert parity.holds is True


@pytest.mark.parametrize("parity", FAR.values(), ids=FAR)
def test_parity_beyond_the_tolerances(parity):
    assert parity.holds is False


def test_a_learner_without_classes_is_refused(tmp_path):
    learner = taught("rda", classes=0)
    with pytest.raises(NothingTaughtError, match=r"nothing was taught.*teach"):
        export_onnx(learner, tmp_path / "a.onnx")
    assert not any(tmp_path.iterdir())


@pytest.mark.without_onnx
@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_cure(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    words = r'needs onnx and onnxruntime: pip install -e "\.\[onnx\]"'
    with pytest.raises(ImportError, match=words):
        export_onnx(taught("ncm", classes=1), tmp_path / "a.onnx")


# The command


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a learner of five classes."""
    path = tmp_path_factory.mktemp("saved") / "mine.safetensors"
    taught("rda").save(path)
    return path


def test_the_command_compares_images(saved, crumb, tmp_path):
    # Given a learner file, and three photos beside a text
    path = shutil.copy(saved, tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(photos(2, 3, 1, (40, 50))):
        Image.fromarray(image).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no photo")
    # When it is exported
    code, out, err = crumb("export", path, "--images", folder, "--threads", 1)
    # Then both are compared on the photos, and the file lies beside the learner's
    assert code == 0, err
    assert "3 images: scores differ by at most" in out
    assert "5 classes" in out
    assert session_of(tmp_path / "mine.onnx").get_outputs()[0].name == "scores"


def test_the_command_takes_an_output(saved, done, tmp_path):
    path = tmp_path / "other.onnx"
    out = done("export", saved, "--output", path)
    assert "32 images" in out
    assert path.is_file()


def test_the_command_names_a_missing_learner(crumb, tmp_path):
    code, _, err = crumb("export", tmp_path / "absent.safetensors")
    assert code == 1
    assert "there is no file" in err


def test_the_command_names_missing_images(saved, crumb, tmp_path):
    code, _, err = crumb("export", saved, "--images", tmp_path / "absent")
    assert code == 1
    assert "no file or folder" in err


def test_the_command_names_the_formats(saved, crumb):
    code, _, err = crumb("export", saved, "--to", "tflite")
    assert code != 0
    assert "onnx" in err


# Photos


def eth80_photos(folder):
    """The photos of ETH-80 by object, extracted to a folder."""
    with zipfile.ZipFile(ETH80) as archive:
        archive.extractall(folder)
        names = sorted(archive.namelist())
    paths = {}
    for name in names:
        match = re.fullmatch(r"eth80/([a-z]+\d+)/[^/]*\.jpg", name)
        if match is not None:
            paths.setdefault(match[1], []).append(folder / name)
    return paths


@pytest.mark.slow
@pytest.mark.skipif(
    not (ETH80.exists() and WEIGHTS.exists()),
    reason="needs ETH-80 and weights in CRUMB_TEST_DATA",
)
@pytest.mark.parametrize("method", ["recommended", "slda"])
def test_500_photos(method, tmp_path):
    # Given a learner of four objects of each class but cups, all of number 1 first
    paths = eth80_photos(tmp_path)
    learner = Learner(method, "squeezenet1_0", WEIGHTS)
    for name in sorted(paths, key=lambda name: name[::-1]):
        match = re.fullmatch(r"((?!cup)[a-z]+)[1-4]", name)
        if match is not None:
            learner.teach(paths[name][::8], match[1])
    # When its file is compared with it on other objects
    others = []
    for name in paths:
        if not re.fullmatch(r"[a-z]+[1-4]", name):
            others += paths[name]
    images = others[:: len(others) // 500][:500]
    parity = export_onnx(learner, tmp_path / "mine.onnx", images)
    print(parity)
    # Then both answer alike
    assert parity.images == 500
    assert parity.holds
    # And few are unknown: cups, which were not taught
    unknown = [path for path in images[::10] if not learner.predict(path).known]
    assert 0 < len(unknown) < 25
