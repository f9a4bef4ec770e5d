"""An exported learner: a file that answers as the learner does, or no file."""

import json
import re
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche.learner import export
from crumb_avalanche.learner.export import (
    OUTPUTS,
    ExportError,
    Graph,
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
    patches = COLOURS[number].repeat(size[0] // 2, 0).repeat(size[1] // 2, 1)
    return np.clip(patches + random.normal(0, 25, (count, *size, 3)), 0, 255).astype(
        np.uint8
    )


def taught(method, backbone="small_cnn", classes=5, image_size=32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FrozenNetwork.build(backbone, None, image_size)
    learner = Learner.__new__(Learner)
    learner._set_up(method, network, 9_000_000)
    for number in range(classes):
        learner.teach(photos(number, 3 + number), f"c{number}")
    return learner


def session_of(path):
    return pytest.importorskip("onnxruntime").InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )


@pytest.fixture(autouse=True)
def needs_onnx(request):
    if "without_onnx" not in request.keywords:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")


def test_the_file_answers_as_the_learner_where_cells_share_rows(tmp_path):
    learner = taught("rda", image_size=40)
    assert learner.network.model.map_shape[1] % learner.features["cells"]
    # Noise of other sizes would compare resizing as well, where one level of a pixel
    # may decide between two classes.
    parity = export_onnx(
        learner,
        tmp_path / "a.onnx",
        [one for n in range(5) for one in photos(n, 4, 1, (40, 40))],
    )
    assert parity.holds and parity.score_error < 1e-4


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("method", CLOSED_FORMS)
def test_the_file_answers_as_the_learner_for_any_size_and_batch(
    method, fitted, tmp_path
):
    learner = taught(method)
    for number in range(
        10 * fitted
    ):  # lessons of known classes fit temperature and threshold
        learner.teach(photos(number % 5, 3, 3 + number // 5), f"c{number % 5}")
    learner.forget("c2")
    parity = export_onnx(
        learner,
        tmp_path / "a.onnx",
        [one for n in range(5) for one in photos(n, 4, 1, (40, 50))],
    )
    assert (
        parity.holds
        and parity.images == 20
        and parity.score_error < 1e-4
        and parity.other_labels == 0
    )
    assert parity.probability_error < 1e-3
    session, names = session_of(tmp_path / "a.onnx"), ["c0", "c1", "c3", "c4"]
    for size, numbers in (
        ((32, 32), range(8)),
        ((90, 44), [3]),
        ((20, 20), [1]),
        ((32, 120), [4]),
    ):
        images = np.concatenate(
            [photos(number, 3, 6, size) for number in numbers]
        )  # also of classes not taught
        outputs = session.run(list(OUTPUTS), {"images": images})
        scores, shares, known = outputs
        assert [one.dtype for one in outputs] == [np.float32] * 2 + [
            bool
        ] and scores.shape == (len(images), 4)
        pixels = torch.stack(
            [learner._transform(Image.fromarray(one)) for one in images]
        )
        found = learner._classifier.evidence(
            learner._compute(pixels, learner.looks_used)
        )
        expected = found.scores.numpy() * learner._classifier.statistics.temperature
        # Pillow may resize a tall image along its height first: some pixels differ by
        # one level.
        tolerance = 5e-3 if size[0] > size[1] else 1e-4
        np.testing.assert_allclose(
            scores, expected, rtol=0, atol=tolerance * np.abs(expected).max()
        )
        frames = learner.predict(images).frames
        assert [names[place] for place in scores.argmax(1)] == [
            frame.label for frame in frames
        ]
        if size != (32, 32):
            continue
        assert (
            known.tolist() == [frame.known for frame in frames]
            and known.any()
            and not (fitted and known.all())
        )
        for row, frame in zip(shares, frames, strict=True):
            expected = dict([(frame.label, frame.confidence), *frame.runners_up])
            np.testing.assert_allclose(
                row, [expected[name] for name in names], atol=1e-3
            )


@pytest.mark.parametrize(
    "backbone",
    [
        "squeezenet1_0",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mobilenet_v2", "resnet18")
        ),
    ],
)
def test_every_backbone_can_be_exported(backbone, tmp_path):
    assert (
        export_onnx(taught("slda", backbone, 2), tmp_path / "a.onnx").score_error < 1e-3
    )


def test_the_metadata_name_classes_and_weights(tmp_path):
    learner = taught("ncm", classes=3)
    learner.rename("c2", "Stra\u00dfe")
    learner.forget("c1")
    export_onnx(learner, tmp_path / "a.onnx")
    session = session_of(tmp_path / "a.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["c0", "Stra\u00dfe"]
    assert metadata["weights_sha256"] == learner.network.sha256 and re.fullmatch(
        "[0-9a-f]{64}", learner.network.sha256
    )
    assert (metadata["method"], metadata["backbone"], metadata["image_size"]) == (
        "ncm",
        "small_cnn",
        "32",
    )
    assert session.get_inputs()[0].shape == ["batch", "height", "width", 3]
    (scores,) = session.run(["scores"], {"images": photos(2, 1)})
    assert scores.shape == (1, 2) and scores.argmax() == 1


@pytest.mark.parametrize(
    "size",
    [(32, 32), (64, 64), (20, 20), (100, 57), (57, 100), (300, 400), (1, 1), (5, 90)],
)
def test_resizing_equals_pillow_within_a_level(size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    resized = Resize(32)(torch.from_numpy(image)[None])[0]
    difference = (resized - pixel_transform(32)(Image.fromarray(image))).abs()
    assert difference.max() <= 1 and (size[0] > size[1] or not difference.any())


def test_a_graph_that_answers_otherwise_leaves_no_file(tmp_path, monkeypatch):
    right = Graph.forward
    monkeypatch.setattr(
        Graph,
        "forward",
        lambda self, images: (1.01 * right(self, images)[0], *right(self, images)[1:]),
    )
    with pytest.raises(
        ExportError,
        match=r"no file is written.*scores differ by at most 1\.\de-02.*allowed 1e-03",
    ):
        export_onnx(taught("ncm"), tmp_path / "new" / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"before")
    with pytest.raises(ExportError):
        export_onnx(taught("ncm"), tmp_path / "b.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["b.onnx"] and (
        tmp_path / "b.onnx"
    ).read_bytes() == b"before"


@pytest.mark.parametrize(
    ("parity", "holds"),
    [
        *(
            ((500, 9e-4, 1), True),
            ((500, 2e-3, 0), False),
            ((500, 0.0, 2), False),
            ((20, 0.0, 1), False),
        ),
        *(
            ((20, float("inf"), 0), False),
            ((500, 0.0, 0, 9e-3, 1), True),
            ((500, 0.0, 0, 2e-2, 0), False),
        ),
        ((500, 0.0, 0, 0.0, 2), False),
    ],
)
def test_what_counts_as_parity(parity, holds):
    assert export.Parity(*parity).holds is holds


def test_a_learner_without_classes_is_refused(tmp_path):
    with pytest.raises(NothingTaughtError, match=r"nothing was taught.*teach"):
        export_onnx(taught("rda", classes=0), tmp_path / "a.onnx")
    assert not any(tmp_path.iterdir())


@pytest.mark.without_onnx
@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_cure(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=r'needs onnx and onnxruntime: pip install -e "\.\[onnx\]"'
    ):
        export_onnx(taught("ncm", classes=1), tmp_path / "a.onnx")


def test_on_the_command_line(crumb, tmp_path):
    taught("rda").save(tmp_path / "mine.safetensors")
    for number, one in enumerate(photos(2, 3, 1, (40, 50))):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    code, out, err = crumb(
        "export", tmp_path / "mine.safetensors", "--images", tmp_path, "--threads", 1
    )
    assert (
        code == 0 and "3 images: scores differ by at most" in out and "5 classes" in out
    ), err
    assert session_of(tmp_path / "mine.onnx").get_outputs()[0].name == "scores"
    code, out, _ = crumb(
        "export", tmp_path / "mine.safetensors", "--output", tmp_path / "other.onnx"
    )
    assert code == 0 and "32 images" in out and (tmp_path / "other.onnx").is_file()
    for options, words in (
        (["absent.safetensors"], "there is no file"),
        (["mine.safetensors", "--images", tmp_path / "absent"], "no file or folder"),
    ):
        code, _, err = crumb("export", tmp_path / options[0], *options[1:])
        assert code == 1 and words in err
    code, _, err = crumb("export", tmp_path / "mine.safetensors", "--to", "tflite")
    assert code != 0 and "onnx" in err


@pytest.mark.slow
@pytest.mark.skipif(
    not (ETH80.exists() and WEIGHTS.exists()),
    reason="needs ETH-80 and weights in CRUMB_TEST_DATA",
)
@pytest.mark.parametrize("method", ["recommended", "slda"])
def test_500_photos(method, tmp_path):
    with zipfile.ZipFile(ETH80) as archive:
        names = sorted(
            name
            for name in archive.namelist()
            if re.fullmatch(r"eth80/[a-z]+\d+/[^/]*\.jpg", name)
        )
        archive.extractall(tmp_path)
    learner = Learner(method, "squeezenet1_0", WEIGHTS)
    objects = sorted(
        {name.split("/")[1] for name in names}, key=lambda name: name[::-1]
    )  # all of number 1, then 2
    for one in objects:
        if (kind := re.fullmatch(r"((?!cup)[a-z]+)[1-4]", one)) is not None:
            learner.teach(
                [tmp_path / name for name in names if name.startswith(f"eth80/{one}/")][
                    ::8
                ],
                kind[1],
            )
    others = [
        tmp_path / name for name in names if not re.match(r"eth80/[a-z]+[1-4]/", name)
    ]
    some = others[:: len(others) // 500][:500]
    parity = export_onnx(learner, tmp_path / "mine.onnx", some)
    print(parity)
    assert parity.images == 500 and parity.holds
    unknown = [path for path in some[::10] if not learner.predict(path).known]
    assert (
        0 < len(unknown) < 25
    )  # cups were never taught; the others are new objects of classes that were
