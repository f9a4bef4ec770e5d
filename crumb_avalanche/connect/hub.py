"""Publish a learner on a model hub, and fetch one, with ``huggingface_hub``'s own mixin.

What is published is the learner's file without pictures and names of sources, ``config.json``, and a model card.
"""

from pathlib import Path
from typing import Any

try:
    from huggingface_hub import ModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError('a model hub needs huggingface_hub: pip install -e ".[hub]"') from error

from crumb_avalanche.learner.file import write_learner
from crumb_avalanche.learner.learner import Learner

FILE = "learner.safetensors"
CARD = """---
{{ card_data }}
---

# {{ learner.classes | length }} classes, taught one after the other

A learner of crumb-avalanche: {{ learner.method }} on
{{ learner.network.backbone }}, weights from {{ learner.network.source }}. It holds {{ images }} images' statistics in
{{ "{:,}".format(learner.bytes) }} bytes, and no image.

| class | images |
| :-- | --: |
{% for info in learner.classes -%}
| {{ info.name }} | {{ info.images }} |
{% endfor %}
Of {{ answered }} clips that were predicted before they were learned, {{ right }} were right{% if answered %}
({{ "%.0f" | format(100 * right / answered) }} %, 95 % interval {{ low }} to {{ high }} %){% endif %}.

It knows nothing but these classes. Images of others are mostly, not always, answered with `known` false
{%- if learner.clips_missing %}, by a usual threshold, as too few clips were taught to fit one{% endif %}.

```python
from crumb_avalanche import from_pretrained

learner = from_pretrained("{{ name }}")
print(learner.predict("photo.jpg"))
learner.teach("clips/mug", "mug")
```
"""


def interval(right: int, answered: int) -> tuple[int, int]:
    """Return Wilson's 95 % interval of a share, in percent."""
    z, n = 1.96, max(answered, 1)
    middle, spread = right / n + z * z / (2 * n), z * (right / n * (1 - right / n) / n + z * z / (4 * n * n)) ** 0.5
    return tuple(round(100 * (middle + sign * spread) / (1 + z * z / n)) for sign in (-1, 1))  # type: ignore[return-value]


class OnHub(
    ModelHubMixin,
    library_name="crumb_avalanche",
    pipeline_tag="image-classification",
    tags=["continual-learning", "avalanche"],
    model_card_template=CARD,
):
    """A learner as the mixin takes it.

    Args:
        learner: what is published.
        name: of the repository.
    """

    def __init__(self, learner: Any, name: str = ""):
        self.learner, self.name = learner, name
        self._hub_mixin_config = {
            "method": learner.method,
            "backbone": learner.network.backbone,
            "image_size": learner.image_size,
            "classes": [info.name for info in learner.classes],
        }

    def _save_pretrained(self, save_directory: Path) -> None:
        state = self.learner.state_dict()
        state["pictures"] = [None] * len(state["pictures"])
        state["lessons"] = [{**lesson, "source": ""} for lesson in state["lessons"]]
        write_learner(save_directory / FILE, self.learner.network, state, weights=True)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **how: Any) -> "OnHub":
        folder = Path(model_id)
        plain = {name: how[name] for name in ("revision", "cache_dir", "force_download", "token", "local_files_only")}
        file = folder / FILE if folder.is_dir() else hf_hub_download(model_id, FILE, **plain)
        return cls(Learner.load(file), model_id)

    def generate_model_card(self, *arguments: Any, **more: Any) -> Any:
        """Fill in the card."""
        learner = self.learner
        answered, right = (sum(getattr(one, name) for one in learner.lessons) for name in ("answered", "right"))
        low, high = interval(right, answered)
        numbers = {"answered": answered, "right": right, "low": low, "high": high}
        numbers["images"] = sum(info.images for info in learner.classes)
        return super().generate_model_card(*arguments, learner=learner, name=self.name, **numbers, **more)


def push_to_hub(learner: Any, name: str, **how: Any) -> str:
    """Publish a learner on a model hub as ``owner/name``, without pictures and names of sources; return the address.

    Args:
        learner: a ``Learner``.
        name: of the repository, which is made if it is absent.
        how: ``private``, ``token`` and others, see ``huggingface_hub.ModelHubMixin``.
    """
    learner.check_teachable()
    return str(OnHub(learner, name).push_to_hub(name, **how))


def from_pretrained(name: str, **how: Any) -> Learner:
    """Fetch a learner by ``name`` from a model hub, or from a folder; ``how`` as for ``push_to_hub``."""
    return OnHub.from_pretrained(name, **how).learner
