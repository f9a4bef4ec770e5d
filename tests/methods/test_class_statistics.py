"""Strategies that keep class statistics."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin

from crumb_avalanche.methods.closed_form_settings import RanpacSettings, SldaSettings
from crumb_avalanche.methods.closed_form_strategy import NCM, SLDA, ClosedFormStrategy
from crumb_avalanche.methods.entry import Recipe
from crumb_avalanche.methods.features import feature_length, pooled_features
from crumb_avalanche.methods.method_settings import LearningSettings
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac_entry import RANPAC
from crumb_avalanche.methods.rda_entry import RDA
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.training.ledger import LedgerMetric, statistics_bytes

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
ENTRIES = [NCM, SLDA, RANPAC]


class Losses(SupervisedPlugin):
    """The training losses."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def after_training_iteration(self, strategy, **kwargs):
        self.losses.append(float(strategy.loss))


def strategy(entry, make_model, make_stream, method=None, **settings):
    """A strategy on the small stream, and the stream; not yet trained."""
    stream = make_stream()
    recipe = Recipe(
        model=make_model(codebook=False),
        settings=LearningSettings(batch_size=6, **settings),
        method=entry.method() if method is None else method,
        mem_size=8,  # two directions a class, where there are some
        n_classes=4,
        seed=0,
        device="cpu",
        host={"evaluator": EvaluationPlugin(loggers=[])},
    )
    return entry.build(recipe), stream


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_statistics_of_a_stream_are_those_of_its_features_and_the_network_stays(entry, make_model, make_stream):
    torch.manual_seed(0)
    learner, stream = strategy(entry, make_model, make_stream)
    weights = {name: value.clone() for name, value in learner.model.state_dict().items()}
    for experience in stream.train_stream:
        learner.train(experience)
    data = [experience.dataset for experience in stream.train_stream]
    features = torch.cat([pooled_features(learner.model, torch.stack([item[0] for item in part])) for part in data])
    labels = torch.tensor([item[1] for part in data for item in part])
    expected = strategy(entry, make_model, make_stream)[0].statistics
    expected.update(features, labels)
    for ours, theirs in zip(learner.statistics.tensors(), expected.tensors()):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, weights[name]) for name, value in learner.model.state_dict().items())
    assert statistics_bytes(learner) == entry.fixed_bytes(learner.model, entry.method(), 4) > 0


def test_every_image_counts_once_whatever_the_number_of_epochs(make_model, make_stream):
    stream = make_stream()
    model = make_model(codebook=False)
    watch = Losses()
    learner = ClosedFormStrategy(
        statistics=ClassMeans(4, feature_length(model)), model=model, first_epochs=3, train_epochs=2, plugins=[watch],
        optimizer=torch.optim.SGD(model.parameters(), lr=1), evaluator=EvaluationPlugin(loggers=[]),
    )  # fmt: skip
    for experience in stream.train_stream:
        learner.train(experience)
    assert learner.statistics.counts.tolist() == [10] * 4
    assert watch.losses and not any(watch.losses)


def test_the_ledger_counts_what_is_derived_from_the_statistics_apart(make_model, make_stream):
    sizes = {}
    for entry in (*ENTRIES, RDA):
        learner, stream = strategy(entry, make_model, make_stream)
        fresh = LedgerMetric().count(learner)["derived_bytes"]
        learner.train(stream.train_stream[0])  # two classes
        ledger = LedgerMetric().count(learner)
        assert ledger["memory_bytes"] == statistics_bytes(learner)
        length, r = learner.statistics.settings["length"], 1
        k = int(learner.statistics.directions.counts.sum()) if entry is RDA else 0
        by_hand = {
            "ncm": 2 * length,  # unit means
            "slda": 2 * (length + 1),  # weights and offsets
            "ranpac": 640 * (2 + length),  # weights; and the projection, drawn from its seed
            # Centre, projection to the span, and means there; deviations; means; spreads, their products with the means
            # and among themselves; parts, logarithms and numbers of classes; root.
            "rda": length * (1 + r) + 2 * r + 2 + (2 + k) * length + k + (k // 2) ** 2 * 2 + 3 * 2 + length**2,
        }
        sizes[entry.name] = fresh, ledger["derived_bytes"] - 8 * by_hand[entry.name]
    assert sizes == {name: (0, 0) for name in sizes}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_recipe_makes_a_single_pass(entry, make_model, make_stream):
    learner, stream = strategy(entry, make_model, make_stream, first_epochs=10, epochs=3)
    for experience in stream.train_stream:
        learner.train(experience)
    assert learner.clock.train_iterations == 2 * 4  # 20 images in batches of 6


def test_huge_scores_leave_no_room_for_unseen_classes(make_model, make_stream):
    learner, stream = strategy(SLDA, make_model, make_stream, SldaSettings(shrinkage=1e-9))
    learner.train(stream.train_stream[0])
    learner.statistics.classes.means *= 1e4  # scores far below the -10,000 of an unseen class
    outputs = []
    learner._after_eval_iteration = lambda **kwargs: outputs.append(learner.mb_output)
    learner.eval(stream.test_stream[:1])
    outputs = torch.cat(outputs)
    seen = learner.seen_classes.seen
    assert set(outputs.argmax(1).tolist()) <= set(seen) and outputs.max(1).values.eq(0).all()


def test_bytes_at_the_papers_cut():
    model = split_backbone("squeezenet1_0", None, n_classes=10, image_size=64, codebook=None)
    sizes = [entry.fixed_bytes(model, entry.method(), 10) for entry in ENTRIES]
    assert sizes == [20_520, 1_048_576 + 20_520, 640 * 640 * 4 + 640 * 10 * 4 + 10 * 4]
    assert RANPAC.fixed_bytes(model, RanpacSettings(), 240) < 15 * 3 * 224**2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SldaSettings(shrinkage=0.0), "shrinkage is 0.0; it is a share: above 0"),
        (lambda: SldaSettings(shrinkage=1.1), "shrinkage is 1.1"),
        (lambda: RanpacSettings(projection=0), "projection is 0; give at least 1"),
        (lambda: RanpacSettings(ridge=0.0), "ridge is 0.0; give a positive number"),
    ],
)
def test_wrong_settings_are_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
