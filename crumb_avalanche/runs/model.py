"""The model of a plan or a pretraining, and the memories that its budget buys."""

from typing import Any

from crumb_avalanche.methods.registry import Entry
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import check_and_load
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.system.setting_ranges import MOST_MEMORIES
from crumb_avalanche.training.pretraining import read_pretrained


def network_of(settings: RunPlan | PretrainSettings) -> dict[str, Any]:
    """Return the arguments of ``split_backbone`` that the settings decide.

    ``crumb pretrain`` trains as the paper does.
    """
    return dict(
        name=settings.backbone,
        cut_layer=settings.cut_layer,
        relu_logits=settings.relu_logits,
        head_kernel=settings.head_kernel,
        image_size=settings.image_size,
        fine_tuning=getattr(settings, "fine_tuning", False),
    )


# Settings that decide which codes a codebook makes.
CODEBOOK_SETTINGS = (
    "codebook_size",
    "codebook_dim",
    "codebook_search",
    "codebook_tables",
    "codebook_grouping",
    "codebook_filter",
)


def codebook_of(settings: RunPlan | PretrainSettings) -> Codebook:
    """Build the codebook of settings, whose memory blocks have no values yet."""
    assert settings.codebook_dim is not None, "defaults are filled in"
    return Codebook(
        settings.codebook_size,
        settings.codebook_dim,
        search=settings.codebook_search,
        tables=settings.codebook_tables,
        grouping=settings.codebook_grouping,
        filtered=settings.codebook_filter,
    )


def build_model(
    settings: RunPlan | PretrainSettings, n_classes: int, codebook: bool
) -> SplitModel:
    """Build the split model and load its weights, without calibration.

    Args:
        settings: of a run or a pretraining.
        n_classes: outputs of the head, which is new also on a pretrained network.
        codebook: whether the model has a codebook.

    Raises:
        ValueError: the weights do not fit the network, or the pretrained file was made
            with other settings.
    """
    arguments: dict[str, Any] = {**network_of(settings), "codebook": None}
    if codebook:
        arguments["codebook"] = codebook_of(settings)
    pretrained = getattr(settings, "pretrained", None)
    if not pretrained:
        weights = None if settings.weights == "none" else settings.weights
        return split_backbone(weights=weights, n_classes=n_classes, **arguments)
    # Tensors by name, and the settings of the pretraining.
    tensors, made_with = read_pretrained(pretrained)
    compared_settings = ["backbone", "cut_layer", "head_kernel"]
    if codebook:
        compared_settings += CODEBOOK_SETTINGS
    for name in compared_settings:
        pretrained_value = made_with.get(name, getattr(PretrainSettings, name))
        value = getattr(settings, name)
        if pretrained_value != value:
            raise ValueError(
                f"{pretrained} was made with {name}={pretrained_value}, but this run "
                f"has {name}={value}; give the same value, or pretrain again"
            )
    model = split_backbone(weights=None, n_classes=made_with["classes"], **arguments)
    if not codebook:
        for name in [*tensors]:
            if name.startswith("codebook."):
                del tensors[name]
    check_and_load(model, tensors, pretrained)  # raises if they do not fit
    model.reset_head(n_classes)
    return model


def capacity_of(plan: RunPlan, strategy_entry: Entry, model: SplitModel) -> int:
    """Compute the number of memories that the budget of a run buys.

    The budget is the same for every strategy. What is charged to it differs by family,
    so that what is kept in all may be more; ``tables.budget_text`` says so. A method
    that keeps statistics instead of memories has 0; they are checked against the budget
    in the family *fair* and where the settings give one.

    Args:
        plan: of the run.
        strategy_entry: its strategy in the registry.
        model: the network, for the sizes of its maps and weights.

    Raises:
        ValueError: the budget is too small, or buys more memories than a run can have.
    """
    if not strategy_entry.budgeted:  # it keeps statistics
        _check_statistics_fit(plan, strategy_entry, model)
        return 0
    n_classes = model.n_classes
    if plan.mem_size is not None:
        n_memories = plan.mem_size
    else:
        n_memories = strategy_entry.memories_in_budget(
            model,
            plan.budget,
            n_classes,
            strategy_entry.method_settings(plan.method),
            # The paper charges CRUMB's codebook, but neither REMIND's nor the old
            # networks of other methods.
            charged=plan.family != "paper" or strategy_entry.codebook,
            exact=plan.family == "fair",  # the paper rounds some bytes
        )
    if n_memories > MOST_MEMORIES:
        raise ValueError(
            f"a budget of {plan.budget:,} bytes buys {n_memories:,} memories; lower "
            f"it, or give --mem-size {MOST_MEMORIES} or less"
        )
    if strategy_entry.each_class and n_memories < n_classes:
        raise ValueError(
            f"mem_size={n_memories} cannot hold a memory of each of the {n_classes} "
            "classes; raise --mem-size, "
            f"--budget-images or --budget-bytes until it is at least {n_classes}"
        )
    return n_memories


def _check_statistics_fit(
    plan: RunPlan, strategy_entry: Entry, model: SplitModel
) -> None:
    """Raise ValueError if a method's statistics take more bytes than the budget.

    A budget counts in the family *fair*, and where the settings give one.

    Args:
        plan: settings of the run, with its budget in bytes.
        strategy_entry: the method in the registry, which computes its bytes.
        model: the network, for the length of its features.
    """
    n_classes = model.n_classes
    method_settings = strategy_entry.method_settings(plan.method)
    statistics_bytes = strategy_entry.fixed_bytes(model, method_settings, n_classes)
    budget_counts = plan.family == "fair" or plan.budget_given
    if budget_counts and statistics_bytes > plan.budget:
        raise ValueError(
            f"{plan.strategy} keeps {statistics_bytes} bytes of statistics for "
            f"{n_classes} classes, more than the budget of "
            f"{plan.budget}; raise --budget-images or --budget-bytes"
        )
