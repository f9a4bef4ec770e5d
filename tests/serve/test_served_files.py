"""Files of a learner that a server sends and opens."""

import sys
import tempfile
from pathlib import Path

import pytest
from http_lessons import names, post, teach
from photos import opened, photo
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from crumb_avalanche.learner.learner import Learner


@pytest.mark.parametrize("colour", ["red", "green"])
def test_a_download_answers_alike(taught, tmp_path, colour):
    download = taught.get("/download")
    assert 'filename="mine.safetensors"' in download.headers["content-disposition"]
    path = tmp_path / "copy.safetensors"
    path.write_bytes(download.content)
    data = photo(colour, 11)
    expected = Learner.load(path).predict(opened(data)).as_dict()
    expected.pop("path")
    headers = {"Content-Type": "image/png"}
    answer = taught.post("/predict", content=data, headers=headers)
    assert answer.json() == expected | {"notes": []}


def test_a_download_is_what_is_known(taught, shared):
    download = taught.get("/download")
    shared.path.unlink()
    assert len(taught.get("/download").content) == len(download.content)
    assert download.headers["content-length"] == str(len(download.content))


def open_file(client, content):
    return client.post("/open", content=content)


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda client: client.get("/download"), id="download"),
        pytest.param(lambda client: open_file(client, b"learner"), id="open"),
        pytest.param(lambda client: client.get("/export"), id="export"),
    ],
)
def test_a_temporary_file_that_cannot_be_written(taught, monkeypatch, request_of):
    # Given a full disk of temporary files
    def no_space(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", no_space)
    # When a request needs one
    answer = request_of(taught)
    # Then the reason is given, and what was learned stays
    assert answer.status_code == 507
    assert "(No space left on device), so nothing was changed" in answer.json()["error"]
    assert names(taught) == {"red": 4, "green": 4}


def test_a_learner_file_is_opened(taught, weights_file, tmp_path):
    path = tmp_path / "other.safetensors"
    learner_of_sea = Learner("recommended", "small_cnn", weights_file, 32)
    learner_of_sea.teach(Image.new("RGB", (32, 32), "navy"), "sea")
    learner_of_sea.save(path)
    version = open_file(taught, path.read_bytes()).json()["version"]
    assert names(taught) == {"sea": 1}
    post(taught, f"/revert?version={version}")
    assert names(taught) == {"red": 4, "green": 4}


def test_teaching_goes_on_in_an_opened_file(taught):
    content = taught.get("/download").content
    post(taught, "/forget?name=red")
    assert open_file(taught, content).status_code == 200
    teach(taught, "red")
    assert names(taught) == {"red": 8, "green": 4}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"no learner", "is no .safetensors file"),
        (lambda content: content[:-1], "is no complete .safetensors file"),
    ],
)
def test_a_file_that_is_no_learner(taught, damage, words):
    answer = open_file(taught, damage(taught.get("/download").content))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.startswith(f"the body {words}")
    assert error.endswith(
        "send a file that crumb teach, Learner.save or GET /download wrote"
    )
    assert names(taught) == {"red": 4, "green": 4}


def test_a_file_with_the_same_network_from_elsewhere(taught, weights_file, tmp_path):
    copied = tmp_path / "renamed.safetensors"
    copied.write_bytes(Path(weights_file).read_bytes())
    path = tmp_path / "other.safetensors"
    Learner("recommended", "small_cnn", copied, 32).save(path)
    assert open_file(taught, path.read_bytes()).status_code == 200


def test_a_file_with_another_network(taught, tmp_path):
    path = tmp_path / "other.safetensors"
    Learner("recommended", "small_cnn", None, 48).save(path)
    answer = open_file(taught, path.read_bytes())
    assert answer.status_code == 400
    assert "start it with that file" in answer.json()["error"]


def test_the_learner_is_exported(taught):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    answer = taught.get("/export")
    assert 'filename="mine.onnx"' in answer.headers["content-disposition"]
    assert len(answer.content) > 1000


def test_export_without_the_extra(taught, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    answer = taught.get("/export")
    assert answer.status_code == 501
    assert "onnx" in answer.json()["error"]
