"""A learner on a model hub: what is published and fetched."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import crumb_avalanche
from crumb_avalanche.learner.learner import Learner

pytest.importorskip("huggingface_hub")
from crumb_avalanche.connect import hub


@pytest.fixture
def taught(weights_file):
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.keep_pictures = True
    for number, name in enumerate(("mug", "shoe", "mug")):
        learner.teach(np.full((2, 32, 32, 3), 80 + 40 * number, np.uint8), name)
    return learner


def test_nothing_private_is_published_and_what_is_fetched_answers_alike(taught, tmp_path, monkeypatch):
    sent = tmp_path / "sent"

    def upload(self, *, repo_id, folder_path):
        shutil.copytree(folder_path, sent)
        return f"uploaded {repo_id}"

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, repo_id, **how: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    photo = tmp_path / "secret name.png"
    Image.new("RGB", (32, 32), (200, 0, 0)).save(photo)
    taught.teach(photo, "tie")
    assert (
        crumb_avalanche.push_to_hub(taught, "me/mugs") == "uploaded me/mugs" and taught.lessons[-1].source == photo.name
    )
    assert sorted(file.name for file in sent.iterdir()) == ["README.md", "config.json", "learner.safetensors"]
    assert json.loads((sent / "config.json").read_text())["classes"] == ["mug", "shoe", "tie"]
    card = (sent / "README.md").read_text()
    for words in ("| mug | 4 |", "small_cnn", "95 % interval", 'from_pretrained("me/mugs")', "image-classification"):
        assert words in card
    content = b"".join(file.read_bytes() for file in sent.iterdir())
    assert b"secret name" not in content and str(tmp_path).encode() not in content
    there = {("me/mugs", "learner.safetensors", "x"): str(sent / "learner.safetensors")}
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, file, token: there[name, file, token])
    for fetched in (crumb_avalanche.from_pretrained(str(sent)), crumb_avalanche.from_pretrained("me/mugs", token="x")):
        assert fetched.predict(photo) == taught.predict(photo)
        assert not any(lesson.picture for lesson in fetched.lessons)
