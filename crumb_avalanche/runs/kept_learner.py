"""Write the learner file of a run, with a header from its plan and stream."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from crumb_avalanche.learner.file import LEARNER, NOT_KEPT, Keep, LearnerHeader, save_learner
from crumb_avalanche.models.backbone_names import is_timm, preprocessing_of
from crumb_avalanche.runs.provenance import versions
from crumb_avalanche.runs.session import Session, network_of
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, as_dict


def keep_learner(folder: Path, session: Session, experiences: int, interrupted: bool = False) -> bool:
    """Write ``learner.safetensors`` according to the plan's ``keep_learner``; of an interrupted run, always in full.

    Args:
        folder: folder of the run, or ``interrupted`` in it.
        session: a trained session.
        experiences: number of experiences trained on to the end.
        interrupted: whether the run was; without a checkpoint, this file is all that is left of it.

    Returns:
        Whether a file was written: none for ``keep_learner="none"`` and for the strategies in ``NOT_KEPT``.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
    """
    keep = "full" if interrupted else session.plan.keep_learner
    if keep == "none" or session.plan.strategy in NOT_KEPT:
        return False
    save_learner(folder / LEARNER, session.strategy, header_of(session, experiences, keep))
    return True


def header_of(session: Session, experiences: int, keep: Keep = "full") -> LearnerHeader:
    """Build the header of a session's learner file."""
    plan, benchmark, model = session.plan, session.stream.benchmark, session.model
    labels = [list(map(int, one.dataset.targets)) for one in benchmark.train_stream[:experiences]]
    images = Counter(label for experience in labels for label in experience)
    names = benchmark.class_names
    blocks, expected = model.codebook, preprocessing_of(plan.backbone).as_dict()
    network = {**network_of(plan), "n_classes": model.n_classes}
    if is_timm(plan.backbone):
        network["preprocessing"] = expected
    return LearnerHeader(
        strategy=plan.strategy,
        method={**plan.method, **getattr(session.strategy, "decided_settings", {})},
        learning=asdict(plan.learning),
        mem_size=plan.capacity,
        seed=plan.run,
        network=network,
        codebook=None if blocks is None else (blocks.codebook_size, blocks.codebook_dim),
        precision=plan.precision,
        evaluate_quantized=plan.evaluate_quantized,
        transform={**expected, "size": plan.image_size},
        classes=[dict(label=label, name=names[label], images=count) for label, count in images.items()],
        lessons=[
            dict(experience=number, labels=sorted(set(given)), images=len(given)) for number, given in enumerate(labels)
        ],
        budget=dict(bytes=plan.budget, mem_size=plan.mem_size),
        calibration=dict(feature_scale=float(model.feature_scale), codebook_init=plan.codebook_init),
        keep=keep,
        versions={**versions(), "runtime": str(model.runtime)},
        plan={name: value for name, value in as_dict(plan).items() if name not in NON_RESULT_SETTINGS},
    )
