"""BiC against slow loops: what is held out, and the two stages."""

import copy
import math

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from watched import built, plugin_of, unseen_in
from watched import learned as learned_by

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.bic import BiCPlugin, BiCSettings, SplitExemplars, fit_bias
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.replay import OldNetwork, draw_from
from crumb_avalanche.training.ledger import LedgerMetric

pytestmark = pytest.mark.filterwarnings("ignore")
BIC = STRATEGIES["bic"]
CLASSES = ("fish", "house", "key", "leaf", "ring", "star")  # three experiences of two


def learned(make_model, make_stream, mem_size=14, experiences=2, **more):
    torch.manual_seed(0)
    stream = make_stream(classes=CLASSES)
    return learned_by("bic", make_model(n_classes=6, codebook=False), stream, mem_size, experiences, **more), stream


def the(strategy):
    return plugin_of(BiCPlugin, strategy)


def key(image):
    return tuple(image.flatten().tolist())


class Spy(SupervisedPlugin):
    """Works out each step's loss by itself, and which frames it left out."""

    def __init__(self, temperature=2.0):
        super().__init__()
        self.temperature = temperature
        self.losses, self.expected, self.left_out, self.learned = [], [], set(), set()

    def before_backward(self, strategy, **kwargs):
        buffer, model, bic = strategy.storage_policy, strategy.model, the(strategy)
        seen = strategy.seen_classes.seen
        new = set(map(int, strategy.experience.dataset.targets))
        old = [c for c in seen if c not in new]
        held = buffer.rule.held_out(strategy.mb_y.tolist())
        items = []
        for image, label, out in zip(strategy.mb_x, strategy.mb_y.tolist(), held):
            (self.left_out if out else self.learned).add(key(model.pixels(image.unsqueeze(0))[0]))
            if not out:
                items.append((model.features(image.unsqueeze(0)), label))
        if old:
            lists = [buffer.slots.by_class[c] for c in buffer.classes if c in old]
            slots = [s for members in lists for s in (members[1:] if len(members) > 1 else members)]
            for slot in draw_from(copy.deepcopy(buffer.slots.random), slots, len(strategy.mb_y)).tolist():
                row = buffer.rows[slot : slot + 1]
                items.append((model.features(row), int(buffer.labels[slot])))
        total = 0.0
        for one_map, label in items:
            z = {c: float(v) for c, v in enumerate(model.classify(one_map)[0])}
            z = {c: float(bic.alpha[c]) * z[c] + float(bic.beta[c]) for c in seen}
            entropy = math.log(sum(map(math.exp, z.values()))) - z[label]
            if old:
                said = bic.old_network.logits(model, one_map)[0]
                said = {c: (float(bic.alpha[c] * said[c] + bic.beta[c])) / self.temperature for c in old}
                soft = {c: z[c] / self.temperature for c in old}
                top = sum(map(math.exp, said.values()))
                log = math.log(sum(map(math.exp, soft.values())))
                distilled = -sum(math.exp(said[c]) / top * (soft[c] - log) for c in old)
                share = len(old) / len(seen)
                entropy = share * distilled + (1 - share) * entropy
            total += entropy
        self.expected.append(total / max(1, len(items)))

    def before_update(self, strategy, **kwargs):
        self.losses.append(float(strategy.loss))
        unseen = [c for c in range(6) if c not in strategy.seen_classes.seen]
        assert not strategy.model.plastic_layers.head.weight.grad[unseen].any()


def test_two_scalars_are_recovered_on_a_shifted_toy_problem():
    random = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(5_000, 4, generator=random)
    labels = torch.multinomial(true.softmax(1), 1, generator=random).squeeze(1)
    shifted = true.clone()
    shifted[:, [1, 3]] = (true[:, [1, 3]] + 1.5) / 0.6  # so 0.6 * logit - 1.5 is right
    alpha, beta = fit_bias(shifted, labels, [1, 3], BiCSettings(bias_decay=0.0))
    assert alpha == pytest.approx(0.6, abs=0.05) and beta == pytest.approx(-1.5, abs=0.15)
    assert fit_bias(true, labels, [1, 3], BiCSettings()) == pytest.approx((1, 0), abs=0.1)
    held_back = fit_bias(shifted, labels, [1, 3], BiCSettings(bias_decay=1.0))[1]
    assert -1.4 < held_back < 0


def test_the_order_of_new_classes_is_never_reversed():
    logits = torch.tensor([[2.0, 0, 5, 6], [0, 2, 6, 5], [0, 0, 1, 2], [0, 0, 2, 1]])
    alpha, beta = fit_bias(logits, torch.arange(4), [2, 3], BiCSettings())  # best told apart with a negative alpha
    assert alpha == pytest.approx(0.01) and math.isfinite(beta)


def test_every_step_has_the_loss_of_a_slow_loop(make_model, make_stream):
    spy = Spy()
    strategy, _ = learned(make_model, make_stream, experiences=3, plugins=[spy])
    assert len(spy.losses) == 2 * 4 + 4 + 4
    assert spy.losses == pytest.approx(spy.expected, rel=1e-4, abs=1e-6)
    assert not torch.equal(the(strategy).alpha[the(strategy)._old], torch.ones(4))  # the third saw corrected logits


def test_validation_frames_are_kept_and_never_learned_from(make_model, make_stream):
    spy = Spy()
    strategy, _ = learned(make_model, make_stream, mem_size=18, experiences=2, plugins=[spy])
    buffer = strategy.storage_policy
    assert {label: buffer.slots.count(label) for label in buffer.classes} == dict(zip(buffer.classes, (5, 5, 4, 4)))
    validation = {key(buffer.rows[members[0]]) for members in buffer.slots.by_class.values()}
    training = {key(buffer.rows[slot]) for members in buffer.slots.by_class.values() for slot in members[1:]}
    assert len(validation) == 4 and validation <= spy.left_out and not validation & spy.learned
    assert len(training) == 14 and training <= spy.learned
    assert len(spy.left_out) == 4  # nothing else is lost to learning


def test_the_second_stage_fits_the_newest_scalars_and_nothing_else(make_model, make_stream):
    class Before(SupervisedPlugin):
        def after_training_exp(self, strategy, **kwargs):
            self.state = {name: value.clone() for name, value in strategy.model.state_dict().items()}

    before = Before()
    strategy, stream = learned(make_model, make_stream, experiences=1, plugins=[before])
    bic = the(strategy)
    assert torch.equal(bic.alpha, torch.ones(6)) and not bic.beta.any()  # there is no bias yet
    first, second = (sorted(set(map(int, stream.train_stream[n].dataset.targets))) for n in (0, 1))
    strategy.train(stream.train_stream[1])
    assert (bic.alpha[second] == bic.alpha[second[0]]).all() and bic.alpha[second[0]] != 1
    others = [c for c in range(6) if c not in second]
    assert torch.equal(bic.alpha[others], torch.ones(4)) and not bic.beta[others].any()
    assert all(torch.equal(value, before.state[name]) for name, value in strategy.model.state_dict().items())
    assert strategy.model.training
    # They are the fit on one validation image of each class.
    buffer, model = strategy.storage_policy, copy.deepcopy(strategy.model).eval()
    slots = [buffer.slots.by_class[label][0] for label in buffer.classes]
    logits = strategy.seen_classes.mask(model.classify(model.features(buffer.rows[slots]))).detach()
    alpha, beta = fit_bias(logits, buffer.labels[slots].long(), second, BiCSettings())
    assert (float(bic.alpha[second[0]]), float(bic.beta[second[0]])) == pytest.approx((alpha, beta), abs=1e-3)
    kept = bic.alpha[second].clone()
    strategy.train(stream.train_stream[2])
    assert torch.equal(bic.alpha[second], kept) and torch.equal(bic.alpha[first], torch.ones(2))


def test_predictions_apply_each_experiences_scalars(make_model, make_stream):
    class Watch(SupervisedPlugin):
        def after_eval_iteration(self, strategy, **kwargs):
            raw, bic = strategy.model(strategy.mb_x), the(strategy)
            for c in range(6):
                wanted = raw[:, c] * bic.alpha[c] + bic.beta[c]
                unseen = c not in strategy.seen_classes.seen
                assert unseen or torch.allclose(strategy.mb_output[:, c], wanted)
                assert unseen == (c in unseen_in(strategy.mb_output))
            self.looked = True

    watch = Watch()
    strategy, stream = learned(make_model, make_stream, plugins=[watch])
    the(strategy).alpha[:] = torch.linspace(0.5, 1, 6)
    strategy.eval(stream.test_stream)
    assert watch.looked
    fresh = built("bic", make_model(n_classes=6, codebook=False), 14)
    fresh.eval(stream.test_stream)  # before anything was learned


def test_validation_is_at_least_one_and_leaves_one():
    rule = SplitExemplars(0.1)
    assert [rule.validating(n) for n in (1, 2, 3, 10, 14, 16, 30)] == [1, 1, 1, 1, 1, 2, 3]
    assert SplitExemplars(0.9).validating(2) == 1
    grown = [rule.validating(n) for n in range(1, 200)]
    assert grown == sorted(grown)  # so trimming never turns a training exemplar into validation


def test_the_rule_puts_validation_first_and_trims_from_the_end():
    rule, slots = SplitExemplars(0.3), Slots(8)
    assert rule.begin_experience(slots, {0: 12, 1: 12}, 4) == []
    assert rule.stored[0] == [1, 4, 7, 10] and rule.held[0] == [7]
    frames = {}
    for start in range(0, 24, 4):
        batch = [0, 1, 0, 1]
        assert rule.held_out(batch) == [number == 7 for number in rule._places_in_class(batch)]
        frames |= {slot: (start + position) // 2 for position, slot in rule.choose(slots, batch)}
    assert {label: [frames[s] for s in members] for label, members in slots.by_class.items()} == {
        0: [7, 1, 4, 10],
        1: [7, 1, 4, 10],
    }
    state = rule.state_dict()
    again = SplitExemplars(0.3)
    again.load_state_dict(state)
    assert again == rule
    # New ones take the places of the others' last, only when they need them.
    rule.begin_experience(slots, {2: 3, 3: 3}, 6)
    assert len(slots) == 8 and rule.quotas == dict.fromkeys(range(4), 2)
    rule.choose(slots, [2])
    assert slots.count(0) + slots.count(1) == 7
    rule.choose(slots, [2, 2, 3, 3, 3])
    assert {label: slots.count(label) for label in range(4)} == dict.fromkeys(range(4), 2)
    assert [frames[s] for s in slots.by_class[0]] == [7, 1] == [frames[s] for s in slots.by_class[1]]
    assert len(slots) == 8 and len(set(slots.free) | {s for m in slots.by_class.values() for s in m}) == 8


def test_bytes_are_images_the_old_network_and_the_scalars(make_model, make_stream):
    strategy, _ = learned(make_model, make_stream)
    kept = OldNetwork.bytes_of(strategy.model, True) + 2 * 4 * 6
    assert the(strategy).statistics_bytes == kept == BIC.fixed_bytes(strategy.model, BiCSettings(), 6)
    assert LedgerMetric().count(strategy)["memory_bytes"] == 14 * 768 + 14 * 2 + kept
    assert BIC.memories_in_budget(strategy.model, 14 * 768 + kept, 6) == 14
