"""CRUMB against a plain PyTorch loop of the paper's algorithm 1."""

import copy
import inspect
import re
import warnings

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from torch import nn
from torch.nn.functional import cross_entropy

from crumb_avalanche.memory.selection import ClassBalancedReservoir, EveryJth, ReferenceRule
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.plugins import EpochSchedule, SeenClassesPlugin, TrainingDivergedError
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]

BATCH, EPOCHS, MEM_SIZE = 6, 2, 7
SGD = dict(lr=0.05, momentum=0.9, weight_decay=1e-3)


class LoggedBuffer(CodeBuffer):
    """Code buffer that logs its random choices, the only values that the plain loop reuses."""

    def __init__(self, mem_size, rule, seed=0):
        super().__init__(mem_size, rule, seed)
        self.chosen, self.drawn = [], []
        choose = rule.choose

        def logged(slots, labels):
            pairs = choose(slots, labels)
            self.chosen.append((pairs, rule.finished))
            return pairs

        rule.choose = logged

    def sample(self, without, at_least):
        self.drawn.append(super().sample(without, at_least))
        return self.drawn[-1]


class StopBeforeTheLastEpoch(SupervisedPlugin):
    def before_training_epoch(self, strategy, **kwargs):
        if strategy.clock.train_exp_epochs == 1:
            strategy.stop_training()


def test_a_strategy_that_stops_early_stores_in_an_extra_pass(make_model, make_stream):
    buffer = MapBuffer(MEM_SIZE)
    model = make_model()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), **SGD),
        train_mb_size=BATCH,
        train_epochs=3,
        plugins=[StopBeforeTheLastEpoch(), CRUMBPlugin(buffer)],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    experience = make_stream().train_stream[0]
    strategy.train(experience, shuffle=False)
    assert strategy.clock.train_exp_epochs == 1 and len(buffer) == 2 * (MEM_SIZE // 2)
    maps = model.features(torch.stack([image for image, *_ in experience.dataset]))
    held = sorted(slot for members in buffer.slots.by_class.values() for slot in members)
    nearest = torch.cdist(buffer.rows[held].flatten(1), maps.flatten(1)).min(1)
    assert nearest.values.max() < 1e-4 and len(set(nearest.indices.tolist())) == len(held)
    targets = torch.tensor(list(experience.dataset.targets))
    assert torch.equal(targets[nearest.indices], buffer.labels[held].long())


def train(model, stream, buffer, plugins=(), shuffle=False, **arguments):
    """The small stream through ``CRUMBStrategy``; returns the strategy."""
    settings = dict(train_mb_size=BATCH, first_epochs=EPOCHS, evaluator=EvaluationPlugin(loggers=[])) | arguments
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    strategy = CRUMBStrategy(model=model, optimizer=optimizer, storage_policy=buffer, plugins=plugins, **settings)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=shuffle)
    return strategy


def plain_loop(model, stream, buffer, alpha, beta, replay_weight, replay_steps, fused, clamp):
    """CRUMB on ``model``'s own layers, without any of the library's code but the logged choices of ``buffer``."""
    extractor, plastic, blocks = model.feature_extractor, model.plastic_layers, model.codebook.blocks
    optimizer = torch.optim.SGD([*plastic.parameters(), blocks], **SGD)
    chosen, drawn = iter(buffer.chosen), iter(buffer.drawn)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    memory = {}  # slot -> (label, codes)
    seen = []

    def encode(maps):
        pieces = maps.detach().unflatten(1, (-1, blocks.shape[1])).movedim(2, -1)  # (B, G, H, W, d)
        return (pieces @ (blocks / blocks.norm(dim=1, keepdim=True)).t()).argmax(-1)

    def rebuild(codes):
        return blocks[codes].movedim(-1, 2).flatten(1, 2)

    def loss_of(maps, labels):
        among_seen = torch.tensor([seen.index(label) for label in labels])
        return cross_entropy(plastic(maps)[:, seen], among_seen)

    def replay_loss(labels):
        slots = next(drawn).tolist()
        replayed = [memory[slot][0] for slot in slots]
        assert not set(replayed) & set(labels)
        codes = torch.stack([memory[slot][1] for slot in slots])
        return replay_weight * loss_of(rebuild(codes), replayed)

    def step(loss):
        optimizer.zero_grad()
        loss.backward()
        if clamp is not None:
            for parameter in [*plastic.parameters(), blocks]:
                parameter.grad.clamp_(-clamp, clamp)
        optimizer.step()

    for number, experience in enumerate(stream.train_stream):
        seen += sorted(set(experience.dataset.targets))
        images = torch.stack([experience.dataset[i][0] for i in range(len(experience.dataset))])
        maps = extractor((images / 255 - mean[:, None, None]) / std[:, None, None])
        labels = list(experience.dataset.targets)
        places = [range(len(labels))[start : start + BATCH] for start in range(0, len(labels), BATCH)]
        epochs = EPOCHS if number == 0 else 1
        for epoch in range(epochs):
            for place in places:
                batch, batch_labels = maps[list(place)], labels[place.start : place.stop]
                codes = encode(batch)
                loss = beta * loss_of(rebuild(codes), batch_labels)
                if alpha:
                    loss = loss + alpha * loss_of(batch, batch_labels)
                if number and fused:
                    loss = loss + sum(replay_loss(batch_labels) for _ in range(replay_steps))
                step(loss)
                if number and not fused:
                    for _ in range(replay_steps):
                        step(replay_loss(batch_labels))
                if epoch == epochs - 1 and not buffer.rule.second_pass:
                    memory |= {slot: (batch_labels[i], codes[i]) for i, slot in next(chosen)[0]}
        if buffer.rule.second_pass:
            for place in places:
                with torch.no_grad():
                    codes = encode(maps[list(place)])
                pairs, finished = next(chosen)
                memory |= {slot: (labels[place.start + i], codes[i]) for i, slot in pairs}
                if finished:
                    break
    assert not list(chosen) and not list(drawn)  # nothing happened that is not in this loop
    return memory


PAPER = dict(direct_weight=0.0, codebook_weight=1.0, replay_weight=1.0, replay_steps=1, fused=False)


def same_weights(one, two, **tolerance):
    assert one.state_dict().keys() == two.state_dict().keys()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[name], **tolerance, msg=name)


@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir, ReferenceRule])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replay_weight": 5.0, "clamp_gradients": 0.02},
        {"direct_weight": 0.5, "codebook_weight": 2.0, "replay_steps": 2},
        {"fused": True, "replay_weight": 0.7, "replay_steps": 2},
    ],
)
def test_two_experiences_equal_the_plain_loop(make_model, make_stream, rule, changes):
    arguments = PAPER | {"clamp_gradients": None} | changes
    model, plain, untrained = make_model(), make_model(), make_model()
    buffer = LoggedBuffer(MEM_SIZE, rule())
    train(model, make_stream(), buffer, **arguments)
    memory = plain_loop(
        plain,
        make_stream(),
        buffer,
        alpha=arguments["direct_weight"],
        beta=arguments["codebook_weight"],
        clamp=arguments["clamp_gradients"],
        **{name: arguments[name] for name in ("replay_weight", "replay_steps", "fused")},
    )
    same_weights(model, plain, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model.codebook.blocks, untrained.codebook.blocks, atol=1e-3)  # something was learned
    # The buffer holds what the loop remembers.
    for label, members in buffer.slots.by_class.items():
        for slot in members:
            remembered_label, codes = memory[slot]
            maps, _ = buffer.replay(torch.tensor([slot]), model)
            assert remembered_label == label == int(buffer.labels[slot])
            assert torch.equal(maps, model.codebook.decode(codes[None]))


class Losses(SupervisedPlugin):
    """What CRUMB made of one batch; stands before the guard, behind the seen classes."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def after_backward(self, strategy, **kwargs):
        if not self.rows:
            self.rows.append((strategy.mb_x, strategy.mb_y, float(strategy.loss.detach())))


@pytest.mark.parametrize("alpha, beta", [(0, 1), (1, 0), (1, 1), (0.3, 2.5)])
def test_the_loss_is_alpha_direct_plus_beta_codebook_out(make_model, make_stream, alpha, beta):
    losses, before = Losses(), make_model()
    arguments = dict(direct_weight=alpha, codebook_weight=beta)
    train(make_model(), make_stream(), MapBuffer(MEM_SIZE), [losses], first_epochs=1, **arguments)
    images, labels, loss = losses.rows[0]
    feature_map, seen = before.features(images), sorted(make_stream().train_stream[0].classes_in_this_experience)
    total = 0.0
    for image, label in enumerate(labels.tolist()):  # eq. 3, image by image
        for weight, maps in ((alpha, feature_map), (beta, before.codebook(feature_map))):
            logits = before.plastic_layers(maps[image : image + 1])[0, seen].tolist()
            chosen = before.plastic_layers(maps[image : image + 1])[0, label].item()
            total += weight * (torch.tensor(logits).exp().sum().log().item() - chosen) / len(labels)
    assert loss == pytest.approx(total, rel=1e-4)


class Replays(SupervisedPlugin):
    """Counts replay events; keeps the labels of new and replayed images of each step."""

    def __init__(self, buffer):
        super().__init__()
        self.events, self.pairs, self.experiences = [], [], []
        replay = buffer.replay

        def logged(slots, model):
            maps, labels = replay(slots, model)
            self.pairs.append((set(self.strategy.mb_y.tolist()), labels.tolist(), len(self.strategy.mb_y)))
            self.experiences.append(self.strategy.clock.train_exp_counter)
            return maps, labels

        buffer.replay = logged

    def before_training(self, strategy, **kwargs):
        self.strategy = strategy

    def before_replay_step(self, strategy, **kwargs):
        self.events.append("step")

    def on_replay_loss(self, strategy, **kwargs):
        assert strategy.replay_loss.requires_grad
        self.events.append("loss")

    def on_replay_update(self, strategy, **kwargs):
        self.events.append("update")

    def after_replay_step(self, strategy, **kwargs):
        assert not strategy.replay_loss.requires_grad
        self.events.append("after")


@pytest.mark.parametrize("replay_steps", [0, 1, 3])
@pytest.mark.parametrize("fused", [False, True])
def test_replay_starts_with_the_second_experience(make_model, make_stream, replay_steps, fused):
    buffer = CodeBuffer(MEM_SIZE)
    replays = Replays(buffer)
    train(make_model(), make_stream(), buffer, [replays], replay_steps=replay_steps, fused=fused)
    # 20 images in batches of 6: four iterations in the second experience, each with so many replay batches.
    assert replays.experiences == [1] * 4 * replay_steps
    assert replays.events == ([] if fused else ["step", "loss", "update", "after"] * 4 * replay_steps)


def test_replay_leaves_out_the_classes_of_the_batch(make_model, make_stream):
    buffer = CodeBuffer(8)
    replays = Replays(buffer)
    train(make_model(), make_stream(), buffer, [replays])
    both = 0
    for new, replayed, size in replays.pairs:
        assert replayed and not new & set(replayed)
        counts = [replayed.count(label) for label in set(replayed)]
        assert len(set(counts)) == 1 and size <= len(replayed) < size + len(counts)
        both += bool(set(replayed) - set(make_stream().train_stream[0].classes_in_this_experience))
    assert both  # the other new class is replayed as soon as it has a memory


def test_classes_that_return_are_replayed_beside_their_new_images(make_model, make_stream):
    stream, buffer = make_stream(), CodeBuffer(8)
    first, second = stream.train_stream
    replays = Replays(buffer)
    stream.train_stream = [first, second, first]
    with pytest.warns(UserWarning, match="class 0 returns in experience 2.*replayed") as warned:
        strategy = train(make_model(), stream, buffer, [replays])
    assert sum("returns" in str(one.message) for one in warned) == 1
    # A new class is left out as long as it is new, a class that returned is not.
    assert replays.experiences == [1] * 4 + [2] * 4
    assert all(not new & set(replayed) for new, replayed, _ in replays.pairs[:4])
    assert all(set(replayed) == {0, 1, 2, 3} for _, replayed, _ in replays.pairs[4:])
    assert strategy.memory.returning == {0, 1}


def test_every_update_of_a_domain_incremental_stream_has_its_replay(make_model, make_stream):
    stream, buffer = make_stream(classes_per_experience=4), CodeBuffer(8)
    experience = stream.train_stream[0]
    stream.train_stream = [experience] * 3
    replays = Replays(buffer)
    with pytest.warns(UserWarning, match="returns"):
        train(make_model(), stream, buffer, [replays])
    assert replays.experiences == [1] * 7 + [2] * 7  # 40 images in batches of 6


def test_no_class_returns_in_the_paper_s_streams(make_model, make_stream):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(make_model(), make_stream(), CodeBuffer(8))
    assert not [one for one in warned if "returns" in str(one.message)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir, ReferenceRule])
def test_same_seed_same_bits(make_model, make_stream, rule, fused):
    def run(seed):
        model, buffer = make_model(), CodeBuffer(MEM_SIZE, rule(), seed)
        train(model, make_stream(), buffer, fused=fused)
        return weights_hash(model), buffer

    (one, first), (two, second), (other, third) = run(1), run(1), run(2)
    assert one == two and one != other
    assert torch.equal(first.rows, second.rows) and torch.equal(first.labels, second.labels)
    assert not torch.equal(first.rows, third.rows)


def test_naive_with_the_plugins_equals_the_strategy(make_model, make_stream):
    ready, own = make_model(), make_model()
    first = train(ready, make_stream(), CodeBuffer(MEM_SIZE), direct_weight=0.5).storage_policy
    buffer, seen = CodeBuffer(MEM_SIZE), SeenClassesPlugin()
    strategy = Naive(
        model=own,
        optimizer=torch.optim.SGD(own.parameters(), **SGD),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        plugins=[seen, EpochSchedule(EPOCHS), CRUMBPlugin(buffer, direct_weight=0.5, seen=seen)],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    for experience in make_stream().train_stream:
        strategy.train(experience, shuffle=False)
    assert weights_hash(own) == weights_hash(ready)
    assert torch.equal(buffer.rows, first.rows)


DIRECT = dict(direct_weight=1.0, codebook_weight=0.0)


@pytest.mark.parametrize("kind", [CodeBuffer, ImageBuffer, MapBuffer])
@pytest.mark.parametrize("rule", [EveryJth, ReferenceRule])
def test_a_feature_cache_changes_nothing(make_model, make_stream, tmp_path, kind, rule):
    loss = {} if kind is CodeBuffer else DIRECT
    results = []
    for cached in (False, True):
        model, stream, buffer = make_model(), make_stream(), kind(MEM_SIZE, rule())
        plugins = [FeatureCache(tmp_path, model, len(stream.frame_table), "toy", progress=False)] if cached else []
        train(model, stream, buffer, plugins, **loss)
        results.append((model, buffer))
    (model, buffer), (other, cached_buffer) = results
    same_weights(model, other, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(buffer.rows, cached_buffer.rows, rtol=1e-5, atol=1e-6)
    assert torch.equal(buffer.labels, cached_buffer.labels)


def test_images_beside_a_cache_need_the_frame_order(make_model, make_stream, tmp_path):
    model, stream = make_model(), make_stream()
    cache = FeatureCache(tmp_path, model, len(stream.frame_table), "toy", progress=False)
    with pytest.raises(ValueError, match="images can be stored beside a feature cache only in frame order"):
        train(model, stream, ImageBuffer(MEM_SIZE), [cache], shuffle=True, **DIRECT)


def test_replaying_images_is_replaying_their_maps(make_model, make_stream):
    models, buffers = (make_model(), make_model()), (ImageBuffer(MEM_SIZE), MapBuffer(MEM_SIZE))
    for model, buffer in zip(models, buffers):
        train(model, make_stream(), buffer, **DIRECT)
    same_weights(*models, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(models[0].features(buffers[0].rows), buffers[1].rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [CodeBuffer, ImageBuffer])
@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir, ReferenceRule])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_memory_is_of_an_image_of_its_label(make_model, make_stream, kind, rule, shuffle):
    model, stream, buffer = make_model(), make_stream(), kind(MEM_SIZE, rule())
    model.codebook.requires_grad_(False)  # so that codes of any time can be compared
    train(model, stream, buffer, shuffle=shuffle)
    data = [experience.dataset[i] for experience in stream.train_stream for i in range(20)]
    images = torch.stack([item[0] for item in data])
    expected = model.codebook(model.features(images)) if kind is CodeBuffer else model.features(images)
    assert set(buffer.classes) == {0, 1, 2, 3}
    for label, members in buffer.slots.by_class.items():
        for replayed in buffer.replay(torch.tensor(members), model)[0]:
            matches = [i for i in range(40) if torch.allclose(expected[i], replayed, atol=1e-6)]
            assert matches and {data[i][1] for i in matches} == {label}


def test_only_the_last_epoch_is_stored(make_model, make_stream):
    stored = []

    class Epochs(SupervisedPlugin):
        def before_training_epoch(self, strategy, **kwargs):
            self.now = (strategy.clock.train_exp_counter, strategy.clock.train_exp_epochs)

    buffer, epochs = CodeBuffer(MEM_SIZE), Epochs()
    store = buffer.store
    buffer.store = lambda batch, model: stored.append(epochs.now) or store(batch, model)
    train(make_model(), make_stream(), buffer, [epochs], first_epochs=3)
    assert stored == [(0, 2)] * 4 + [(1, 0)] * 4
    assert len(buffer) == MEM_SIZE


def test_nothing_of_a_batch_is_kept(make_model, make_stream):
    strategy = train(make_model(), make_stream(), CodeBuffer(MEM_SIZE))
    assert strategy.memory.batch is None and not strategy.memory._records and not strategy.model._map_hooks


def test_a_replay_loss_that_is_not_finite_stops_the_training(make_model, make_stream):
    class Fault(SupervisedPlugin):
        def on_replay_loss(self, strategy, **kwargs):
            strategy.replay_loss = strategy.replay_loss * float("nan")

    model = make_model()
    with pytest.raises(TrainingDivergedError, match="in experience 1, iteration 0"):
        train(model, make_stream(), CodeBuffer(MEM_SIZE), [Fault()])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_wrong_settings_are_errors(make_model, make_stream):
    for weights in (dict(codebook_weight=0.0), dict(direct_weight=-1.0), dict(replay_weight=-0.1)):
        with pytest.raises(ValueError, match="weights are not negative, and direct and codebook-out loss cannot"):
            CRUMBPlugin(CodeBuffer(4), **weights)
    with pytest.raises(ValueError, match=re.escape("needs a codebook: build the model with codebook=Codebook()")):
        train(make_model(codebook=False), make_stream(), CodeBuffer(4))
    with pytest.raises(ValueError, match=re.escape("mem_size=3 cannot hold a memory of each of the 4 classes")):
        train(make_model(), make_stream(), CodeBuffer(3))
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    strategy = Naive(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        plugins=[CRUMBPlugin(CodeBuffer(4))],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    with pytest.raises(TypeError, match="CRUMB trains a SplitModel, not a Sequential: build one with split_backbone"):
        strategy.train(make_stream().train_stream[0])


def test_a_copy_of_a_trained_strategy_can_train(make_model, make_stream):
    model, stream = make_model(), make_stream()
    strategy = train(model, stream, CodeBuffer(MEM_SIZE))
    twin = copy.deepcopy(strategy)
    strategy.train(stream.train_stream[0])
    assert weights_hash(twin.model) != weights_hash(strategy.model)
    twin.train(make_stream().train_stream[0])
    assert weights_hash(twin.model) == weights_hash(strategy.model)
    assert torch.equal(twin.storage_policy.rows, strategy.storage_policy.rows)


def small(codebook=True):
    """A network of known weights whose codebook is empty."""
    torch.manual_seed(0)
    return split_backbone("small_cnn", None, n_classes=4, image_size=16, codebook=codebook)


def test_a_model_an_optimiser_and_a_size_are_enough(make_stream):
    results = []
    for by_hand in (False, True):
        model, stream = small(), make_stream()
        assert not model.is_calibrated and model.codebook.codebook_size == 256
        memory = dict(mem_size=MEM_SIZE)
        if by_hand:
            calibrate(model, stream.train_stream[0].dataset)
            memory = dict(storage_policy=CodeBuffer(MEM_SIZE))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        strategy = CRUMBStrategy(model=model, optimizer=optimizer, evaluator=EvaluationPlugin(loggers=[]), **memory)
        torch.manual_seed(1)
        for experience in stream.train_stream:
            strategy.train(experience)
        assert strategy.model.is_calibrated and float(model.feature_scale) != 1
        results.append((weights_hash(model), strategy.storage_policy.rows))
    (one, rows), (two, others) = results
    assert one == two and torch.equal(rows, others) and len(rows) == MEM_SIZE


def test_naive_calibrates_too_and_only_once(make_stream):
    stream, model = make_stream(), small()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        plugins=[CRUMBPlugin(CodeBuffer(MEM_SIZE))],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    strategy.train(stream.train_stream[0])
    scale = float(model.feature_scale)
    assert scale != 1 and model.calibrated
    strategy.train(stream.train_stream[1])
    assert float(model.feature_scale) == scale


def test_a_calibrated_or_directly_trained_model_is_left_alone(make_model, make_stream):
    by_hand = make_model()
    train(by_hand, make_stream(), CodeBuffer(MEM_SIZE))
    assert float(by_hand.feature_scale) == 1 and not by_hand.calibrated
    direct = small(codebook=None)
    train(direct, make_stream(), ImageBuffer(MEM_SIZE), **DIRECT)
    assert float(direct.feature_scale) == 1


@pytest.mark.parametrize("given", [{}, {"mem_size": 5, "storage_policy": CodeBuffer(5)}])
def test_a_buffer_comes_from_one_place(make_model, given):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"mem_size or storage_policy.*" + ("both.*5" if given else "neither")):
        CRUMBStrategy(model=model, optimizer=optimizer, **given)


def test_the_signature_says_how_many_epochs():
    parameters = inspect.signature(CRUMBStrategy).parameters
    assert [parameters[name].default for name in ("first_epochs", "train_epochs", "train_mb_size")] == [None, 1, 21]
