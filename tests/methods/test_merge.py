"""Statistics merged from two parts against one instance that saw both; and what may not be merged or loaded."""

import pytest
import torch
from closed_form_cases import discriminant

from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.system.tensor_file import StateError

D, CLASSES = 6, 4
EXACT = {
    "class means": lambda: ClassMeans(CLASSES, D),
    "streaming LDA": lambda: StreamingLDA(CLASSES, D),
    "random projection": lambda: RandomProjection(CLASSES, D, projection=20, seed=3),
    "discriminant, all directions": lambda: discriminant(CLASSES, D, D),
    "discriminant, common scatter": lambda: discriminant(CLASSES, D, D, whole=True),
}


def toy(count, seed):
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(9)
    centres, mixing = 3 * torch.randn(CLASSES, D, generator=fixed), torch.randn(CLASSES, D, D, generator=fixed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]) + 5, labels


def fed(make, features, labels):
    statistics = make()
    for some, their in zip(features.split(7), labels.split(7)):
        if len(their):
            statistics.update(some, their)
    return statistics


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("parts", ["the same classes", "other classes", "an empty other", "an empty first"])
def test_merged_is_as_trained_on_both(name, parts):
    make = EXACT[name]
    features, labels = toy(200, seed=0)
    if parts == "the same classes":
        first = torch.arange(200) < 130
    elif parts == "other classes":
        first = labels < 2
    else:
        first = torch.full((200,), parts == "an empty other")
    merged, other = (fed(make, features[part], labels[part]) for part in (first, ~first))
    merged.scores(features) if first.any() else None  # a solution that merging must drop
    merged.merge(other)
    joint = fed(make, features, labels)
    rtol, atol = (1e-2, 2e-2) if isinstance(joint, RegularizedDiscriminant) else (1e-3, 1e-4)  # float16 directions
    ours, expected = merged.named_tensors(), joint.named_tensors()
    assert ours.keys() == expected.keys()
    for name in ours.keys() - {"directions", "direction_scales"}:  # directions may differ in their signs
        torch.testing.assert_close(ours[name], expected[name], rtol=1e-3, atol=1e-3)
    for label in range(CLASSES) if "directions" in ours else ():
        mine, theirs = (one.directions.of_class(label) for one in (merged, joint))
        mine, theirs = mine.mT @ mine, theirs.mT @ theirs
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=1e-2 * float(theirs.abs().max()))
    fresh, _ = toy(50, seed=1)
    ours, expected = merged.scores(fresh), joint.scores(fresh)
    torch.testing.assert_close(ours - ours[:, :1], expected - expected[:, :1], rtol=rtol, atol=atol)
    assert (ours.argmax(1) == expected.argmax(1)).double().mean() >= 0.98


def test_few_directions_merge_to_nearly_the_principal_ones():
    features, labels = toy(400, seed=0)
    first = torch.arange(400) < 200

    def make():
        return discriminant(CLASSES, D, directions=3)

    merged, other = (fed(make, features[part], labels[part]) for part in (first, ~first))
    merged.merge(other)
    for label in range(CLASSES):
        group = features[labels == label].double()
        scatter = (group - group.mean(0)).T @ (group - group.mean(0))
        kept = float(merged.directions.of_class(label).square().sum())
        assert kept + float(merged.directions.outside[label]) == pytest.approx(float(scatter.trace()), rel=2e-3)
        assert 0.85 * float(torch.linalg.eigvalsh(scatter)[-3:].sum()) < kept
    fresh, truth = toy(200, seed=1)
    joint = fed(make, features, labels)
    right, jointly = ((one.scores(fresh).argmax(1) == truth).double().mean() for one in (merged, joint))
    assert right >= jointly - 0.03


@pytest.mark.parametrize(
    ("one", "other", "facts"),
    [
        (
            StreamingLDA(CLASSES, D),
            StreamingLDA(CLASSES, D, shrinkage=0.5),
            r"shrinkage=0\.5 .* shrinkage=0\.0001",
        ),
        (
            RandomProjection(CLASSES, D, projection=8),
            RandomProjection(CLASSES, D, projection=8, seed=1),
            "seed=1 .* seed=0",
        ),
        (ClassMeans(CLASSES, D), ClassMeans(CLASSES, D + 1), "length=7 .* length=6"),
        (ClassMeans(CLASSES, D), StreamingLDA(CLASSES, D), "StreamingLDA .* ClassMeans; give the same kind"),
    ],
)
def test_others_are_refused(one, other, facts):
    with pytest.raises(StateError, match=facts):
        one.merge(other)
    before = [tensor.clone() for tensor in one.tensors()]
    with pytest.raises(StateError, match=r"cannot be loaded into those with .*; build both with the same settings"):
        one.load_state_dict(other.state_dict())
    assert all(torch.equal(mine, old) for mine, old in zip(one.tensors(), before))
