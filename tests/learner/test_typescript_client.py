"""A client in TypeScript is generated from the API's description and compiles."""

import json
import shutil
import subprocess

import pytest

pytest.importorskip("fastapi")
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.server import application
from crumb_avalanche.learner.shared import SharedLearner

PACKAGES = ("openapi-typescript@7", "openapi-fetch@0.14", "typescript@5")
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "-t", "es2022", "-m", "esnext", "--moduleResolution", "bundler")
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
def test_a_generated_client_compiles_and_a_wrong_name_does_not(weights_file, tmp_path):
    def run(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    if shutil.which("npm") is None or run("npm", "install", "--prefix", ".", *PACKAGES).returncode:
        pytest.skip("npm installs nothing")
    shared = SharedLearner(Learner("recommended", "small_cnn", weights_file, 32), tmp_path / "mine.safetensors")
    described = application(shared, "token", ["http://127.0.0.1:8000"]).app.openapi()
    shared.close()
    (tmp_path / "openapi.json").write_text(json.dumps(described))
    assert run("npx", "openapi-typescript", "openapi.json", "-o", "api.d.ts").returncode == 0
    for client, says in ((CLIENT, ""), (CLIENT.replace("confidence", "confidences"), "confidences")):
        (tmp_path / "client.ts").write_text(client)
        compiled = run("npx", "tsc", *OPTIONS, "client.ts")
        assert bool(compiled.returncode) == bool(says) and says in compiled.stdout, compiled.stdout
