"""A learner on a model hub: what is published and fetched.

The slow test has a server of its own.
"""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from crumb_avalanche.learner.learner import Learner

pytest.importorskip("huggingface_hub")
from crumb_avalanche.serve import hub

PROGRAM = """
import sys
from crumb_avalanche import Learner
Learner.load(sys.argv[1]).push_to_hub("me/mugs")
learner = Learner.from_pretrained("me/mugs")
print([info.name for info in learner.classes], len(learner.lessons))
"""


@pytest.fixture
def taught(weights_file, tmp_path):
    """A learner of three classes, one from a file whose name is secret."""
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.keep_pictures = True
    learner.teach(grey(80), "mug")
    learner.teach(grey(120), "shoe")
    learner.teach(grey(160), "mug")
    photo = tmp_path / "secret name.png"
    Image.new("RGB", (32, 32), (200, 0, 0)).save(photo)
    learner.teach(photo, "tie")
    return learner


def grey(value):
    """Two images of one grey."""
    return np.full((2, 32, 32, 3), value, np.uint8)


@pytest.fixture
def published(taught, tmp_path, monkeypatch):
    """A folder with what was published of the learner as me/mugs."""
    folder = tmp_path / "sent"

    def create_repo(self, repo_id, **options):
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path):
        shutil.copytree(folder_path, folder)
        return f"uploaded {repo_id}"

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert taught.push_to_hub("me/mugs") == "uploaded me/mugs"
    return folder


def test_what_is_published(published):
    names = sorted(file.name for file in published.iterdir())
    assert names == ["README.md", "config.json", "learner.safetensors"]
    config = json.loads((published / "config.json").read_text())
    assert config["classes"] == ["mug", "shoe", "tie"]


def test_nothing_private_is_published(taught, published, tmp_path):
    assert taught.lessons[-1].source == "secret name.png"
    content = b"".join(file.read_bytes() for file in published.iterdir())
    assert b"secret name" not in content
    assert str(tmp_path).encode() not in content


@pytest.mark.parametrize(
    "words",
    [
        "| mug | 4 |",
        "small_cnn",
        "95 % interval",
        'from_pretrained("me/mugs")',
        "image-classification",
    ],
)
def test_the_model_card(published, words):
    assert words in (published / "README.md").read_text()


def test_the_card_says_that_unknown_things_are_not_told(taught):
    assert taught.missing_clips == 4
    card = hub.render_model_card(taught, "me/mugs")
    assert f"It knows nothing but these classes, and {taught.note}." in card


def test_the_card_says_that_unknown_things_are_told(taught):
    for value in (81, 121, 82, 122):
        label = "mug" if value < 100 else "shoe"
        taught.teach(grey(value), label)
    assert taught.missing_clips == 0
    card = hub.render_model_card(taught, "me/mugs")
    assert "classes: images of others are mostly, not always, answered with" in card


@pytest.mark.parametrize(
    ("answered", "right", "interval"),
    [(0, 0, (0, 79)), (10, 10, (72, 100)), (10, 5, (24, 76)), (1000, 0, (0, 0))],
)
def test_the_interval_of_a_share(answered, right, interval):
    assert hub.Share(answered, right).interval == interval


def test_a_folder_is_fetched(taught, published):
    fetched = Learner.from_pretrained(str(published))
    assert fetched.predict(grey(80)) == taught.predict(grey(80))
    assert not any(lesson.picture for lesson in fetched.lessons)


def test_a_repository_is_fetched(taught, published, monkeypatch):
    def download(name, file, token):
        assert (name, token) == ("me/mugs", "x")
        return str(published / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    fetched = Learner.from_pretrained("me/mugs", token="x")
    assert fetched.predict(grey(80)) == taught.predict(grey(80))


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "a | b",
        "[x](javascript:alert(1))",
        "**bold** _low_ `code` # ~x~ $y$ http:‖evil.example",
        "&lt;",
        "Tasse, rot",
    ],
)
def test_a_class_name_is_shown_as_it_is(taught, name):
    render = pytest.importorskip("markdown").markdown
    taught.rename("mug", name)
    card = hub.render_model_card(taught, "me/mugs")
    row = card[card.index("| :-- | --: |") :].splitlines()[1]
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == 4
    rendered = render(cells[1].strip())
    assert html.unescape(rendered) == f"<p>{name}</p>"
    assert not re.search(r"<(?!/?p>)", rendered)


class Hub(BaseHTTPRequestHandler):
    """The calls of a hub that a push and a fetch need; keeps the files."""

    def answer(self, body, **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        home = f"http://{self.headers['Host']}/me/mugs"
        answer = {
            "url": home,
            "errors": [],
            "warnings": [],
            "commitUrl": f"{home}/commit/a",
            "commitOid": "a" * 40,
        }
        if "/preupload/" in self.path:
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            files = json.loads(data)["files"]
            answer["files"] = [{"path": file["path"], **plain} for file in files]
        if "/commit/" in self.path:
            self.commit(data)
        self.answer(answer)

    def commit(self, data):
        """Keep the files of a commit, which are lines of JSON."""
        for line in data.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                file = entry["value"]
                content = base64.b64decode(file["content"])
                self.server.files[file["path"]] = content

    def do_GET(self):
        content = self.server.files[self.path.rpartition("/resolve/main/")[2]]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self.answer(content, ETag=etag, X_Repo_Commit="a" * 40)

    do_HEAD = do_GET


@pytest.mark.slow
def test_a_server_takes_and_gives_a_learner(taught, tmp_path):
    path = tmp_path / "mine.safetensors"
    taught.save(path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_TOKEN": "x",
        }
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=200,
        )
        server.shutdown()
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.splitlines()[-1] == "['mug', 'shoe', 'tie'] 4"
    assert server.files.keys() >= {"README.md", "config.json", "learner.safetensors"}
