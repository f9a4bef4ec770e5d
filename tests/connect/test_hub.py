"""A learner on a model hub: what is published and fetched; the slow test has a server of its own."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

import crumb_avalanche
from crumb_avalanche.learner.learner import Learner

hub = pytest.importorskip("huggingface_hub")

PROGRAM = """
import sys
from crumb_avalanche import Learner, from_pretrained, push_to_hub
print(push_to_hub(Learner.load(sys.argv[1]), "me/mugs"))
learner = from_pretrained("me/mugs")
print([info.name for info in learner.classes], len(learner.lessons))
"""


@pytest.fixture
def taught(weights_file):
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.keep_pictures = True
    for number, name in enumerate(("mug", "shoe", "mug")):
        learner.teach(np.full((2, 32, 32, 3), 80 + 40 * number, np.uint8), name)
    return learner


def test_nothing_private_is_published_and_what_is_fetched_answers_alike(taught, tmp_path, monkeypatch):
    sent = tmp_path / "sent"

    def upload(self, *, repo_id, folder_path, **how):
        folder_path.rename(sent)
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
    fetched = crumb_avalanche.from_pretrained(str(sent))
    assert fetched.predict(photo) == taught.predict(photo)
    assert not any(lesson.picture for lesson in fetched.lessons)


class Hub(BaseHTTPRequestHandler):
    """The calls of a hub that a push and a fetch need."""

    files: ClassVar[dict[str, bytes]] = {}

    def _say(self, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        data, home = self.rfile.read(int(self.headers["Content-Length"])), f"http://{self.headers['Host']}/me/mugs"
        if self.path == "/api/repos/create":
            self._say({"url": home})
        elif self.path.startswith("/api/validate-yaml"):
            self._say({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            given = json.loads(data)["files"]
            self._say(
                {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in given]}
            )
        elif "/commit/" in self.path:
            for line in map(json.loads, data.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._say({"commitUrl": f"{home}/commit/{'a' * 40}", "commitOid": "a" * 40, "success": True})
        else:
            self.send_error(404)

    def do_GET(self):
        found = self.files.get(self.path.rpartition("/resolve/main/")[2])
        if found is None:
            self.send_error(404)
        else:
            self._say(found, ETag=f'"{hashlib.sha1(found).hexdigest()}"', X_Repo_Commit="a" * 40)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


@pytest.mark.slow
def test_a_learner_is_pushed_to_a_server_and_fetched(taught, tmp_path):
    taught.save(tmp_path / "mine.safetensors")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "x",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "mine.safetensors")]
    done = subprocess.run(command, env={**os.environ, **there}, capture_output=True, text=True, timeout=200)
    server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['mug', 'shoe'] 3" and set(Hub.files) >= {
        "learner.safetensors",
        "README.md",
    }
