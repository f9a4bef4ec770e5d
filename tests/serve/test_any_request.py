"""Any request to a server: an answer or an error, and errors change nothing; a generated client compiles."""

import io
import shutil
import subprocess

import numpy as np
import pytest
from faults import damaged
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

FINE = {200, 307, 400, 403, 404, 405, 409, 413, 503, 507}
FIELDS = {
    "/predict": [],
    "/teach": ["label"],
    "/rename": ["old", "new"],
    "/forget": ["name"],
    "/undo": ["lesson"],
    "/nothing": [],
}
FIELDS |= {"/move": ["old", "new", "lesson"], "/revert": ["version"]}
PATHS = (
    "/classes",
    "/lessons",
    "/picture?lesson=1",
    "/download",
    "/",
    "/health",
    "/openapi.json",
)
PATHS += ("/nothing", "//", "/../etc/passwd", "/%00")
NAMES = (
    "cup",
    "dog",
    "new",
    "",
    "..",
    "a/b",
    "x" * 300,
    "\0",
    "<b>",
    "=1+1",
    "ü",
    "\u202e",
    " ",
    "nan",
    "cup ",
)
PHOTO = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
)
HEADERS = ("host", "origin", "x-crumb-token", "content-type", "content-length")
VALUES = (
    "",
    "evil.example",
    "http://127.0.0.1:8000",
    "multipart/form-data",
    "-1",
    "9" * 30,
    "nan",
)


@st.composite
def requests(draw):
    """Method, path and arguments of a request, most of which would be fine but for its body."""
    path = draw(st.sampled_from(tuple(FIELDS) * 3 + PATHS))
    names = FIELDS.get(path) or draw(
        st.lists(st.sampled_from(["label", "name", "old", "new", "token"]), max_size=2)
    )
    given = {"params": {name: draw(st.sampled_from(NAMES)) for name in names}}
    buffer = io.BytesIO()
    PHOTO.save(
        buffer, draw(st.sampled_from(("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")))
    )
    image = (
        damaged(draw, buffer.getvalue()) if draw(st.booleans()) else buffer.getvalue()
    )
    if draw(st.integers(0, 2)):
        given["content"] = image
    else:
        given["files"] = [("image", ("a.png", image, "image/png"))] * draw(
            st.integers(1, 3)
        )
    if draw(st.integers(0, 6)) == 0:
        given["headers"] = {
            draw(st.sampled_from(HEADERS)): draw(st.sampled_from(VALUES))
        }
    method = draw(
        st.sampled_from(
            ("POST",) * 6 + ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")
        )
    )
    return method, path, given


@settings(phases=[Phase.generate])
@given(request=requests())
def test_any_request(served, request):
    client, known, file = served
    method, path, given = request
    before, content = known(), file.read_bytes()
    found = client.request(method, path, follow_redirects=False, **given)
    assert found.status_code in FINE, found.text
    if found.status_code >= 400:
        assert method == "HEAD" or found.json()["error"]
        assert known() == before and file.read_bytes() == content
    elif (method, path) == ("POST", "/teach"):
        assert known() != before
    assert client.get("/classes").status_code == 200


PACKAGES = ("openapi-typescript@7", "openapi-fetch@0.14", "typescript@5")
OPTIONS = (
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "-t",
    "es2022",
    "-m",
    "esnext",
    "--moduleResolution",
    "bundler",
)
CLIENT = """
import createClient from "openapi-fetch"
import type { paths } from "./api"

const client = createClient<paths>({ baseUrl: "http://127.0.0.1:8000", headers: { "X-Crumb-Token": "token" } })

export async function correct(body: FormData): Promise<string> {
  const asked = { body: { image: [] as string[] }, bodySerializer: () => body }
  const found = await client.POST("/predict", asked)
  if (found.error) throw new Error(found.error.error)
  if (found.data.known) return `${found.data.label} ${found.data.confidence.toFixed(2)}`
  const taught = await client.POST("/teach", { ...asked, params: { query: { label: "mug" } } })
  const lessons = (await client.GET("/lessons")).data ?? []
  await client.POST("/undo", { params: { query: { lesson: lessons[0].number } } })
  return `${taught.data?.images["mug"]} images`
}
"""


@pytest.mark.slow
def test_a_generated_client_compiles_and_a_wrong_name_does_not(served, tmp_path):
    def run(*command):
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=280
        )

    if (
        shutil.which("npm") is None
        or run("npm", "install", "--prefix", ".", *PACKAGES).returncode
    ):
        pytest.skip("npm installs nothing")
    (tmp_path / "openapi.json").write_text(served[0].get("/openapi.json").text)
    assert (
        run("npx", "openapi-typescript", "openapi.json", "-o", "api.d.ts").returncode
        == 0
    )
    for client, says in (
        (CLIENT, ""),
        (CLIENT.replace("confidence", "confidences"), "confidences"),
    ):
        (tmp_path / "client.ts").write_text(client)
        compiled = run("npx", "tsc", *OPTIONS, "client.ts")
        assert bool(compiled.returncode) == bool(says) and says in compiled.stdout, (
            compiled.stdout
        )
