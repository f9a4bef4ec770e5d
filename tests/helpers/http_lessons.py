"""Lessons with photos over HTTP."""

from photos import photo

ORIGIN = "http://127.0.0.1:8000"
TOKEN = "the-token"


def form(colour, count=4):
    """A form of photos."""
    return [
        ("image", (f"{seed}.png", photo(colour, seed), "image/png"))
        for seed in range(count)
    ]


def teach(client, label, count=4, **arguments):
    """Teach photos of a colour, and return the answer."""
    params = {"label": label, **arguments}
    response = client.post("/teach", params=params, files=form(label, count))
    assert response.status_code == 200, response.text
    return response.json()


def post(client, address):
    """Make a change, and return the answer."""
    response = client.post(address)
    assert response.status_code == 200, response.text
    return response.json()


def names(client):
    """The number of images of each class."""
    classes = client.get("/classes").json()["classes"]
    return {info["name"]: info["images"] for info in classes}
