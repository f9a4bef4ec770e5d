"""Images whose features are not finite or too large: refused by name, or left out."""

import pickle

import numpy as np
import pytest
from patch_images import images
from small_lessons import same

from crumb_avalanche.models.split_model import SplitModel


@pytest.fixture
def white(monkeypatch):
    """Images with a white one, number 2, whose feature map holds the value that this function takes."""

    def made(value):
        extract = SplitModel._extract

        def damaged(model, pixels):
            maps = extract(model, pixels).clone()
            maps[(pixels == 255).flatten(1).all(1), 0, 0, 0] = value
            return maps

        monkeypatch.setattr(SplitModel, "_extract", damaged)
        bad = images(3)
        bad[2] = 255
        return bad

    return made


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_an_image_whose_features_cannot_be_used_is_refused_by_name_or_left_out(make, white, value):
    learner, plain, good, bad = make(), make(), images(3), white(value)
    for one in (learner, plain):
        one.teach(images(1), "other")
    before = pickle.loads(pickle.dumps(learner))
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.teach(bad, "some")
    assert same(learner, before) and len(learner.lessons) == 1
    lesson = learner.teach(bad, "some", on_bad="skip")
    assert [one.path for one in lesson.unread] == ["source[2]"] and "finite" in lesson.unread[0].reason
    plain.teach(np.delete(good, 2, axis=0), "some")
    assert lesson.images == {"some": len(good) - 1} and same(learner, plain)
    left_out = []
    answers = list(learner.predict_all(bad, on_bad="skip", report=left_out.append))
    assert len(answers[0].frames) == len(good) - 1 and [one.path for one in left_out] == ["source[2]"]
    with pytest.raises(ValueError, match=r"^source\[2\]: .*must be finite"):
        learner.predict(bad)
    with pytest.raises(ValueError, match=r"no image to learn, 1 file could not be read; source\[0\]: .*finite"):
        learner.teach(bad[2:3], "some", on_bad="skip")
