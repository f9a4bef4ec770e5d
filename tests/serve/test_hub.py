"""A learner on a model hub: what is published and fetched; the slow test has a server of its own."""

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
def taught(weights_file):
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.keep_pictures = True
    for number, name in enumerate(("mug", "shoe", "mug")):
        learner.teach(np.full((2, 32, 32, 3), 80 + 40 * number, np.uint8), name)
    return learner


def test_nothing_private_is_published_and_what_is_fetched_answers_alike(
    taught, tmp_path, monkeypatch
):
    sent = tmp_path / "sent"

    def upload(self, *, repo_id, folder_path):
        shutil.copytree(folder_path, sent)
        return f"uploaded {repo_id}"

    monkeypatch.setattr(
        hub.HfApi,
        "create_repo",
        lambda self, repo_id, **how: SimpleNamespace(repo_id=repo_id),
    )
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    photo = tmp_path / "secret name.png"
    Image.new("RGB", (32, 32), (200, 0, 0)).save(photo)
    taught.teach(photo, "tie")
    assert (
        taught.push_to_hub("me/mugs") == "uploaded me/mugs"
        and taught.lessons[-1].source == photo.name
    )
    assert sorted(file.name for file in sent.iterdir()) == [
        "README.md",
        "config.json",
        "learner.safetensors",
    ]
    assert json.loads((sent / "config.json").read_text())["classes"] == [
        "mug",
        "shoe",
        "tie",
    ]
    card = (sent / "README.md").read_text()
    for words in (
        "| mug | 4 |",
        "small_cnn",
        "95 % interval",
        'from_pretrained("me/mugs")',
        "image-classification",
    ):
        assert words in card
    content = b"".join(file.read_bytes() for file in sent.iterdir())
    assert b"secret name" not in content and str(tmp_path).encode() not in content
    there = {("me/mugs", "learner.safetensors", "x"): str(sent / "learner.safetensors")}
    monkeypatch.setattr(
        hub, "hf_hub_download", lambda name, file, token: there[name, file, token]
    )
    for fetched in (
        Learner.from_pretrained(str(sent)),
        Learner.from_pretrained("me/mugs", token="x"),
    ):
        assert fetched.predict(photo) == taught.predict(photo)
        assert not any(lesson.picture for lesson in fetched.lessons)


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
    card = hub.model_card(taught, "me/mugs")
    row = card[card.index("| :-- | --: |") :].splitlines()[1]
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == 4
    shown = render(cells[1].strip())
    assert html.unescape(shown) == f"<p>{name}</p>"
    assert not re.search(r"<(?!/?p>)", shown)


class Hub(BaseHTTPRequestHandler):
    """The calls of a hub that a push and a fetch need; keeps the files."""

    def say(self, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        data, home = (
            self.rfile.read(int(self.headers["Content-Length"])),
            f"http://{self.headers['Host']}/me/mugs",
        )
        said = {
            "url": home,
            "errors": [],
            "warnings": [],
            "commitUrl": f"{home}/commit/a",
            "commitOid": "a" * 40,
        }
        if "/preupload/" in self.path:
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            said["files"] = [
                {"path": one["path"], **plain} for one in json.loads(data)["files"]
            ]
        for line in map(
            json.loads, data.splitlines() if "/commit/" in self.path else ()
        ):
            if line["key"] == "file":
                self.server.files[line["value"]["path"]] = base64.b64decode(
                    line["value"]["content"]
                )
        self.say(said)

    def do_GET(self):
        found = self.server.files[self.path.rpartition("/resolve/main/")[2]]
        self.say(
            found, ETag=f'"{hashlib.sha1(found).hexdigest()}"', X_Repo_Commit="a" * 40
        )

    do_HEAD = do_GET


@pytest.mark.slow
def test_a_learner_is_pushed_to_a_server_and_fetched(taught, tmp_path):
    taught.save(tmp_path / "mine.safetensors")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_TOKEN": "x",
        }
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "mine.safetensors")]
        done = subprocess.run(
            command,
            env={**os.environ, **there},
            capture_output=True,
            text=True,
            timeout=200,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['mug', 'shoe'] 3"
    assert {"README.md", "config.json", "learner.safetensors"} <= server.files.keys()
