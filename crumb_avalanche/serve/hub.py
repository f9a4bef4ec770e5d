"""Publish a learner on a model hub, and fetch one.

What is published is the learner's file without pictures and names of sources,
``config.json``, and a model card.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2

try:
    from huggingface_hub import HfApi, hf_hub_download
except ImportError as error:
    raise ImportError(
        'a model hub needs huggingface_hub: pip install -e ".[hub]"'
    ) from error

from crumb_avalanche.learner.file import write_learner
from crumb_avalanche.learner.learner import Learner

FILE = "learner.safetensors"
CARD = Path(__file__).parent / "model_card.jinja"


def interval(right: int, answered: int) -> tuple[int, int]:
    """Return Wilson's 95 % interval of a share, in percent."""
    z, n = 1.96, max(answered, 1)
    middle, spread = (
        right / n + z * z / (2 * n),
        z * (right / n * (1 - right / n) / n + z * z / (4 * n * n)) ** 0.5,
    )
    return tuple(
        round(100 * (middle + sign * spread) / (1 + z * z / n)) for sign in (-1, 1)
    )  # type: ignore[return-value]


def push_to_hub(
    learner: Learner,
    name: str,
    private: bool | None = None,
    token: str | None = None,
    **how: Any,
) -> str:
    """Publish a learner on a model hub as ``owner/name``, without pictures and names of sources; return the address.

    Args:
        learner: a learner that can be taught.
        name: of the repository, which is made if it is absent.
        private: whether a new repository is private; default as the owner's settings
            say.
        token: of the hub; default the one that was logged in with.
        how: see ``huggingface_hub.HfApi.upload_folder``.
    """
    learner.check_teachable()
    answered, right = (
        sum(getattr(one, key) for one in learner.lessons)
        for key in ("answered", "right")
    )
    low, high = interval(right, answered)
    numbers = {"answered": answered, "right": right, "low": low, "high": high}
    numbers["images"] = sum(info.images for info in learner.classes)
    config = {
        "method": learner.method,
        "backbone": learner.network.backbone,
        "image_size": learner.image_size,
        "classes": [info.name for info in learner.classes],
    }
    state = learner.state_dict()
    state["pictures"] = [None] * len(state["pictures"])
    state["lessons"] = [{**lesson, "source": ""} for lesson in state["lessons"]]
    hub = HfApi(token=token)
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_learner(folder / FILE, learner.network, state, weights=True)
        (folder / "config.json").write_text(
            json.dumps(config, indent=2), encoding="utf-8"
        )
        card = jinja2.Template(CARD.read_text(encoding="utf-8")).render(
            learner=learner, name=name, **numbers
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
        repository = hub.create_repo(name, private=private, exist_ok=True).repo_id
        return str(hub.upload_folder(repo_id=repository, folder_path=folder, **how))


def from_pretrained(name: str, **how: Any) -> Learner:
    """Fetch a learner by ``owner/name`` from a model hub, or from a folder.

    Args:
        name: see above.
        how: ``revision``, ``token`` and others, see
            ``huggingface_hub.hf_hub_download``.
    """
    folder = Path(name)
    return Learner.load(
        folder / FILE if folder.is_dir() else hf_hub_download(name, FILE, **how)
    )
