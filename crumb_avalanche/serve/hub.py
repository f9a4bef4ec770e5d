"""Publish a learner on a model hub, and fetch one.

What is published is the learner's file without pictures and names of sources,
``config.json``, and a model card.
"""

import json
from dataclasses import dataclass
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
Z = 1.96  # of a 95 % interval
# Signs that Markdown or HTML read as more than a sign (also of links that are found in
# plain text), as entities, which all renderers show as the sign.
_ENTITIES = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in "\\`*_{}[]<>#+!|~$&:.@^\"'"}
)


@dataclass(frozen=True)
class Share:
    """How many clips were recognised before they were learned; see ``Lesson.right``.

    Attributes:
        answered: clips that were predicted.
        right: the right ones among them.
    """

    answered: int
    right: int

    @property
    def percent(self) -> float:
        """The share of right ones, in percent; 0 of no clips."""
        return 100 * self.right / max(self.answered, 1)

    @property
    def interval(self) -> tuple[int, int]:
        """Wilson's 95 % interval of the share, in percent."""
        n = max(self.answered, 1)
        share = self.right / n
        # Middle and half the width, before both are divided by 1 + Z^2 / n.
        middle = share + Z**2 / (2 * n)
        half_width = Z * (share * (1 - share) / n + Z**2 / (4 * n**2)) ** 0.5
        scale = 100 / (1 + Z**2 / n)
        low = round(scale * (middle - half_width))
        high = round(scale * (middle + half_width))
        return low, high


def plain(text: object) -> str:
    """Return a text as Markdown that shows it as it is, whatever signs it holds."""
    return str(text).translate(_ENTITIES)


def push_to_hub(
    learner: Learner,
    name: str,
    private: bool | None = None,
    token: str | None = None,
    **upload_options: Any,
) -> str:
    """Publish a learner on a model hub as ``owner/name``; return the address.

    Pictures and names of sources are left out.

    Args:
        learner: a learner that can be taught.
        name: of the repository, which is made if it is absent.
        private: whether a new repository is private; default as the owner's settings
            say.
        token: of the hub; default the one that was logged in with.
        upload_options: see ``huggingface_hub.HfApi.upload_folder``.
    """
    learner.check_teachable()  # raises if it can only be asked
    hub = HfApi(token=token)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_public(learner, name, folder)
        repository = hub.create_repo(name, private=private, exist_ok=True).repo_id
        address = hub.upload_folder(
            repo_id=repository, folder_path=folder, **upload_options
        )
        return str(address)


def write_public(learner: Learner, name: str, folder: Path) -> None:
    """Write what is published of a learner to a folder.

    Args:
        learner: a learner that can be taught.
        name: of the repository.
        folder: an empty folder.
    """
    state = learner.state_dict()
    # Pictures and the paths of photos are nobody else's concern.
    state["pictures"] = [None] * len(state["pictures"])
    state["lessons"] = [{**lesson, "source": ""} for lesson in state["lessons"]]
    write_learner(folder / FILE, learner.network, state, weights=True)
    config = {
        "method": learner.method,
        "backbone": learner.network.backbone,
        "image_size": learner.image_size,
        "classes": [info.name for info in learner.classes],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    card = render_model_card(learner, name)
    (folder / "README.md").write_text(card, encoding="utf-8")


def render_model_card(learner: Learner, name: str) -> str:
    """Return the README of a published learner, which a hub shows as its model card.

    It says what the learner knows and how often it was right, in Markdown.

    Args:
        learner: a learner that can be taught.
        name: of the repository, ``owner/name``.
    """
    environment = jinja2.Environment(
        keep_trailing_newline=False, undefined=jinja2.StrictUndefined
    )
    environment.filters["plain"] = plain  # escapes what Markdown would take for its own
    template = environment.from_string(CARD.read_text(encoding="utf-8"))
    recognised = Share(
        answered=sum(lesson.answered for lesson in learner.lessons),
        right=sum(lesson.right for lesson in learner.lessons),
    )
    return template.render(
        learner=learner,
        name=name,
        images=sum(info.images for info in learner.classes),
        recognised=recognised,
    )


def from_pretrained(name: str, **download_options: Any) -> Learner:
    """Fetch a learner by ``owner/name`` from a model hub, or from a folder.

    Args:
        name: ``owner/name``, or path of a folder.
        download_options: ``revision``, ``token`` and others, see
            ``huggingface_hub.hf_hub_download``.
    """
    folder = Path(name)
    if folder.is_dir():
        return Learner.load(folder / FILE)
    return Learner.load(hf_hub_download(name, FILE, **download_options))
