"""Any request: an answer or an error, and errors change nothing."""

import shutil
import subprocess

import numpy as np
import pytest
from faults import damaged
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from photos import encoded
from PIL import Image

FINE = {200, 307, 400, 403, 404, 405, 409, 413, 503, 507}
FIELDS = {
    "/predict": [],
    "/teach": ["label"],
    "/rename": ["old", "new"],
    "/forget": ["name"],
    "/undo": ["lesson"],
    "/nothing": [],
    "/move": ["old", "new", "lesson"],
    "/revert": ["version"],
}
PATHS = (
    "/classes",
    "/lessons",
    "/picture?lesson=1",
    "/download",
    "/",
    "/health",
    "/openapi.json",
    "/nothing",
    "//",
    "/../etc/passwd",
    "/%00",
)
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
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
METHODS = ("POST",) * 6 + ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")
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
    """Method, path and options of a request, mostly fine but for its body."""
    path = draw(st.sampled_from(tuple(FIELDS) * 3 + PATHS))
    any_fields = st.lists(
        st.sampled_from(("label", "name", "old", "new", "token")), max_size=2
    )
    fields = FIELDS.get(path) or draw(any_fields)
    options = {"params": {name: draw(st.sampled_from(NAMES)) for name in fields}}
    image = encoded(PHOTO, draw(st.sampled_from(FORMATS)))
    if draw(st.booleans()):
        image = damaged(draw, image)
    if draw(st.integers(0, 2)):
        options["content"] = image
    else:
        count = draw(st.integers(1, 3))
        options["files"] = [("image", ("a.png", image, "image/png"))] * count
    if draw(st.integers(0, 6)) == 0:
        name = draw(st.sampled_from(HEADERS))
        options["headers"] = {name: draw(st.sampled_from(VALUES))}
    return draw(st.sampled_from(METHODS)), path, options


@settings(phases=[Phase.generate])
@given(request=requests())
def test_any_request(served, request):
    client, known, file = served
    method, path, options = request
    classes = known()
    content = file.read_bytes()
    response = client.request(method, path, follow_redirects=False, **options)
    assert response.status_code in FINE, response.text
    if response.status_code >= 400:
        assert method == "HEAD" or response.json()["error"]
        assert known() == classes
        assert file.read_bytes() == content
    elif (method, path) == ("POST", "/teach"):
        assert known() != classes
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

const baseUrl = "http://127.0.0.1:8000"
const headers = { "X-Crumb-Token": "token" }
const client = createClient<paths>({ baseUrl, headers })

export async function correct(body: FormData): Promise<string> {
  const asked = { body: { image: [] as string[] }, bodySerializer: () => body }
  const found = await client.POST("/predict", asked)
  if (found.error) throw new Error(found.error.error)
  if (found.data.known) return `${found.data.label} ${found.data.confidence.toFixed(2)}`
  const query = { label: "mug" }
  const taught = await client.POST("/teach", { ...asked, params: { query } })
  const lessons = (await client.GET("/lessons")).data ?? []
  await client.POST("/undo", { params: { query: { lesson: lessons[0].number } } })
  return `${taught.data?.images["mug"]} images`
}
"""


@pytest.fixture(scope="module")
def compiled(served, tmp_path_factory):
    """A function that compiles a client in TypeScript against the description."""
    folder = tmp_path_factory.mktemp("client")

    def run(*command):
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=280
        )

    install = ("npm", "install", "--prefix", ".", *PACKAGES)
    if shutil.which("npm") is None or run(*install).returncode:
        pytest.skip("npm installs nothing")
    (folder / "openapi.json").write_text(served[0].get("/openapi.json").text)
    described = run("npx", "openapi-typescript", "openapi.json", "-o", "api.d.ts")
    assert described.returncode == 0

    def compiled_client(client):
        (folder / "client.ts").write_text(client)
        return run("npx", "tsc", *OPTIONS, "client.ts")

    return compiled_client


@pytest.mark.slow
def test_a_generated_client_compiles(compiled):
    process = compiled(CLIENT)
    assert process.returncode == 0, process.stdout


@pytest.mark.slow
def test_a_wrong_name_does_not_compile(compiled):
    process = compiled(CLIENT.replace("confidence", "confidences"))
    assert process.returncode
    assert "confidences" in process.stdout
