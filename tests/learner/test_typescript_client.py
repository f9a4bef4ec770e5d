"""A client in TypeScript is generated from the API's description and compiles."""

import json
import shutil
import subprocess

import pytest

pytest.importorskip("fastapi")
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.server import application
from crumb_avalanche.learner.shared import SharedLearner

CLIENT = """
import createClient from "openapi-fetch"
import type { paths } from "./api"

const client = createClient<paths>({ baseUrl: "http://127.0.0.1:8000", headers: { "X-Crumb-Token": "token" } })

export async function correct(photo: Blob): Promise<string> {
  const body = new FormData()
  body.append("image", photo)
  const asked = { body: { image: [] as string[] }, bodySerializer: () => body }
  const found = await client.POST("/predict", asked)
  if (found.error) throw new Error(found.error.error)
  if (found.data.known) return `${found.data.label} ${found.data.confidence.toFixed(2)}`
  const taught = await client.POST("/teach", { ...asked, params: { query: { label: "mug" } } })
  const lessons = (await client.GET("/lessons")).data ?? []
  await client.POST("/undo", { params: { query: { lesson: lessons[0].number } } })
  await client.POST("/forget", { params: { query: { name: "mug" } } })
  return `${taught.data?.images["mug"]} images`
}
"""


@pytest.mark.slow
def test_a_generated_client_compiles_and_a_wrong_name_does_not(weights_file, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    shared = SharedLearner(learner, tmp_path / "mine.safetensors")
    described = application(shared, "token", ["http://127.0.0.1:8000"]).app.openapi()
    shared.close()
    (tmp_path / "openapi.json").write_text(json.dumps(described))

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    packages = ("openapi-typescript@7", "openapi-fetch@0.14", "typescript@5")
    installed = run("npm", "install", "--prefix", ".", "--no-audit", "--no-fund", *packages)
    if installed.returncode:
        pytest.skip(f"npm installs nothing: {installed.stderr[-200:]}")
    made = run("npx", "openapi-typescript", "openapi.json", "-o", "api.d.ts")
    assert made.returncode == 0, made.stderr
    compiler = ("npx", "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--target", "es2022")
    compiler += ("--moduleResolution", "bundler", "client.ts")
    (tmp_path / "client.ts").write_text(CLIENT)
    compiled = run(*compiler)
    assert compiled.returncode == 0, compiled.stdout
    (tmp_path / "client.ts").write_text(CLIENT.replace("confidence", "confidences"))
    assert "confidences" in run(*compiler).stdout
