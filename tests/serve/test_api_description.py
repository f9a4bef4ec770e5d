"""The description of the API, and the documentation of it."""

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")


DOCS = (Path(__file__).parents[2] / "docs" / "http.md").read_text()


@pytest.fixture
def described(served):
    return served[0].get("/openapi.json").json()


def test_the_documentation_names_every_path(described):
    rows = re.findall(r"^\| `(GET|POST) (/\w*)", DOCS, re.MULTILINE)
    paths = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
    }
    assert paths == {*rows, ("GET", "/")} - {("GET", "/openapi")}


def test_the_documentation_names_every_status(described):
    statuses = set(re.findall(r"^\| (\d{3}) \|", DOCS, re.MULTILINE))
    responses = described["paths"]["/teach"]["post"]["responses"]
    assert responses.keys() == statuses | {"200", "default"}


def test_teaching_is_described(described):
    teach = described["paths"]["/teach"]["post"]
    assert teach["security"]
    assert teach["requestBody"]["content"].keys() == {"image/*", "multipart/form-data"}
    parameters = {parameter["name"]: parameter for parameter in teach["parameters"]}
    required = [name for name in parameters if parameters[name]["required"]]
    assert required == ["label"]
    assert parameters.keys() == {"label", "new_class", "source", "box"}
    assert parameters["label"]["schema"]["maxLength"] == 200
    assert "security" not in described["paths"]["/health"]["get"]
