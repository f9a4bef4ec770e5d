"""The scikit-learn face: its own checks, classes that come later, and images."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.datasets import make_blobs
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.learner.scikit_learn import CrumbClassifier, ImageFeatures
from crumb_avalanche.methods.budgeted_statistics import BudgetError


@pytest.mark.parametrize("method", ["rda", "slda"])
def test_scikit_learns_own_checks(method):
    check_estimator(CrumbClassifier(method))


def test_later_classes_join_and_named_ones_wait():
    points, labels = make_blobs(120, 5, centers=4, random_state=0)
    names = np.array(["pear", "cup", "apple", "dog"])[labels]
    first, later = labels < 2, labels == 2
    model = CrumbClassifier().partial_fit(
        points[first], names[first], classes=["cup", "dog", "pear"]
    )
    assert model.classes_.tolist() == ["cup", "dog", "pear"]
    assert (model.predict_proba(points)[:, 1] == 0).all()
    before = model.predict(points[first])
    model.partial_fit(points[later], names[later])
    assert model.classes_.tolist() == ["cup", "dog", "pear", "apple"]
    assert (before == names[first]).all() and (
        model.predict(points[first | later]) == names[first | later]
    ).all()
    np.testing.assert_allclose(model.predict_proba(points).sum(1), 1)


@pytest.mark.parametrize("method", ["rda", "slda", "ncm"])
def test_probabilities_have_the_temperature_of_the_method(method):
    points, labels = make_blobs(60, 5, centers=3, cluster_std=4, random_state=0)
    model = CrumbClassifier(method).fit(points, labels)
    scores = model.statistics_.scores(torch.tensor(points)).numpy()
    gaps = (scores[:, 0] - scores[:, 1]) / type(model.statistics_).temperature
    first, second, _ = model.predict_proba(points).T
    np.testing.assert_allclose(np.log(first / second), gaps, atol=1e-6)


def test_what_does_not_fit_is_refused_before_anything_is_learned():
    points, labels = make_blobs(40, 5, centers=2, random_state=0)
    model = CrumbClassifier("ncm", budget_bytes=48).fit(points, labels)
    with pytest.raises(
        BudgetError, match="72 bytes are needed for 3 classes, but the budget is 48"
    ):
        model.partial_fit(points[:1], [7])
    assert model.classes_.tolist() == [0, 1] and model.score(points, labels) > 0.9
    with pytest.raises(ValueError, match="method is 'er'; give one in closed form"):
        CrumbClassifier("er").fit(points, labels)


def test_images_pass_the_frozen_network():
    draws = np.random.default_rng(0)
    bright = np.repeat([60, 190], 6)
    images = (
        bright[:, None, None, None] + draws.integers(-40, 40, (12, 40, 40, 3))
    ).astype(np.uint8)
    pipeline = make_pipeline(
        ImageFeatures("small_cnn", None, 32), CrumbClassifier()
    ).fit(images, bright)
    assert (pipeline.predict(images) == bright).all()
    listed = pipeline[0].transform(list(images))
    np.testing.assert_array_equal(listed, pipeline[0].transform(images))


def test_a_bad_photo_of_a_list(tmp_path):
    # Given a pipeline, and a file that is no image
    images = np.zeros((4, 8, 8, 3), np.uint8)
    images[:2] = 255
    pipeline = make_pipeline(ImageFeatures("small_cnn", None, 32), CrumbClassifier())
    pipeline.fit(images, [0, 0, 1, 1])
    path = tmp_path / "a.jpg"
    path.write_bytes(b"no image")
    # When it is asked about it
    with pytest.raises(
        BadFrameError, match=r"a\.jpg: .*leave it out of the list\.$"
    ) as error:
        pipeline.predict([path])
    # Then nothing is advised that scikit-learn does not take
    assert "on_bad" not in str(error.value)
