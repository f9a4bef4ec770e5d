"""A learner taught by many workers answers as one taught by one, whatever happens to the workers."""

import copy
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import small_lessons
import torch
from lossy_engine import LossyEngine
from patch_images import images
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.learner import distributed
from crumb_avalanche.learner.clips import ClipFiles
from crumb_avalanche.learner.distributed import GROUPS, shards_of
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.runtimes import Runtime, RuntimeRefusedError
from crumb_avalanche.system.ray_cluster import Engine as Here
from crumb_avalanche.system.ray_cluster import RayCalls

CLASSES, CLIPS, FRAMES = 5, 4, 5


def write(folder, classes=CLASSES, clips=CLIPS, frames=FRAMES):
    for number in range(classes):
        for clip in range(clips):
            place = folder / f"c{number}" / f"clip{clip}"
            place.mkdir(parents=True)
            for frame, pixels in enumerate(images(number, frames, seed=clip)):
                Image.fromarray(pixels).save(place / f"{frame}.png")
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Class folders of clips."""
    return write(tmp_path_factory.mktemp("many"))


def asked():
    """Images that were not taught, and those of a class that was not."""
    return torch.from_numpy(np.concatenate([images(n, 4, seed=9) for n in range(CLASSES + 1)])).permute(0, 3, 1, 2)


def scores(learner):
    """Scores of images, classes in the order of their names."""
    known = learner._classifier
    columns = [known.find(info.name) for info in sorted(learner.classes, key=lambda info: info.name)]
    return known.statistics.scores(learner._classifier.compute(learner.network.model, asked()))[:, columns]


def same(one, other):
    one, other = (small_lessons.tensors(learner) for learner in (one, other))
    # NaN equals NaN.
    equal = (torch.equal(value.nan_to_num(0.125), other[name].nan_to_num(0.125)) for name, value in one.items())
    return one.keys() == other.keys() and all(equal)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("method", ["rda", "ranpac", pytest.param("slda", marks=SLOW), pytest.param("ncm", marks=SLOW)])
def test_many_answer_as_one(make, tree, method):
    one, many = make(method), make(method)
    alone = one.teach(tree)
    progress = []
    lesson = many.teach(tree, engine=Here(), progress=progress.append)
    assert lesson.images == alone.images == {f"c{n}": CLIPS * FRAMES for n in range(CLASSES)}
    assert lesson.clips == alone.clips == CLASSES * CLIPS
    assert len(progress) > 1 and sum(progress) == CLASSES * CLIPS * FRAMES
    assert {info.name: info.images for info in one.classes} == {info.name: info.images for info in many.classes}
    mine, theirs = scores(one), scores(many)
    assert torch.equal(mine.argmax(1), theirs.argmax(1))
    # ranpac inverts a nearly singular matrix; rda rounds the directions of a class.
    tolerance = {"ranpac": 1e-3, "rda": 1e-2}.get(method, 1e-5)
    assert float((mine - theirs).abs().max() / mine.abs().max()) <= tolerance


@pytest.mark.parametrize("method", ["ncm", "rda"])
def test_neither_order_nor_losses_change_a_bit(make, tree, method):
    calm, lossy = make(method), make(method)
    engine = LossyEngine()
    for learner, workers in ((calm, Here()), (lossy, engine)):
        learner.teach(images(CLASSES + 1, 4), "before")
        learner.teach(tree, engine=workers)
    assert engine.calls.count("teach_shard") > 2 * GROUPS  # each shard is learned again and again
    assert same(calm, lossy)
    assert [lesson.answered for lesson in calm.lessons] == [lesson.answered for lesson in lossy.lessons]


def test_confidence_comes_from_clips_that_were_asked_of_others(make, tree):
    one, many = make(), make()
    one.teach(tree)
    lesson = many.teach(tree, engine=Here())
    records = many._classifier.confidence._records
    # A clip is asked of the 7 other groups of shards: of at least 15 of 20 images of its class.
    assert lesson.answered == len(records.lessons.unique()) == CLASSES * CLIPS
    assert records.images.min() >= CLIPS * FRAMES - FRAMES * -(-CLASSES * CLIPS // GROUPS) and records.classes.min() > 1
    assert lesson.right > 0.8 * lesson.answered
    answers = [[many.predict(image).known for image in images(number, 10, seed=9)] for number in range(CLASSES + 1)]
    assert np.mean(answers[:CLASSES]) > 0.8 and np.mean(answers[CLASSES]) < 0.5
    temperatures = []
    for learner in (one, many):
        known = learner._classifier
        temperatures.append(known.confidence.temperature(known.evidence(known.compute(learner.network.model, asked()))))
    assert temperatures[1] == pytest.approx(temperatures[0], rel=0.3)


def test_a_clip_is_whole_in_one_shard_and_classes_are_in_many():
    clips = [ClipFiles(f"c{n}/{clip}", f"c{n}", ("a.png",) * 40) for n in range(10) for clip in range(20)]
    shards = shards_of(clips)
    assert sorted(clip.path for shard in shards for clip in shard) == sorted(clip.path for clip in clips)
    assert len(shards) == -(-200 * 40 // distributed.IMAGES)
    assert {sum(clip.images for clip in shard) for shard in shards} <= {480, 520}
    for n in range(10):
        assert sum(any(clip.label == f"c{n}" for clip in shard) for shard in shards) >= 10
    assert [len(shard) for shard in shards_of(clips[:3])] == [1, 1, 1]
    assert shards_of([]) == []
    assert ClipFiles("a.mp4", "a", ("a.mp4",)).images > 1


def test_files_that_cannot_be_read(make, tree, tmp_path):
    broken = write(tmp_path / "tree", 2, 2, 2)
    (broken / "c0" / "clip0" / "0.png").write_bytes(b"no image")
    (broken / "c1" / "clip1" / "0.png").write_bytes(b"")
    learner = make()
    lesson = learner.teach(broken, on_bad="skip", engine=Here())
    assert sorted(Path(bad.path).parts[-3] for bad in lesson.unread) == ["c0", "c1"]
    assert lesson.images == {"c0": 3, "c1": 3}
    before = copy.deepcopy(learner)
    with pytest.raises(BadFrameError, match=r"clip0.0\.png"):
        learner.teach(broken, engine=LossyEngine())
    for path in broken.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no image to learn, 8 files could not be read"):
        learner.teach(broken, on_bad="skip", engine=Here())
    assert same(before, learner)


def test_what_workers_cannot_do_is_refused(make, tree, monkeypatch):
    for learner, source, label, words in (
        (make("er"), tree, None, r"method er trains layers.*rda, slda, ncm, ranpac"),
        (make(), images(0), "c0", "ndarray is not for workers: give a path"),
        (make(), tree / "c0" / "clip0", None, "clip0 has no class: give a label"),
        (make("ncm", budget_bytes=1000), tree, None, "bytes are needed for 2 classes"),
    ):
        with pytest.raises(ValueError, match=words):
            learner.teach(source, label, engine=Here())
    learner = make()
    monkeypatch.setattr(learner.network.model, "runtime", Runtime("torch", "0.1"))
    with pytest.raises(RuntimeRefusedError, match=r"a worker has runtime torch .*began with torch 0\.1.*all nodes"):
        learner.teach(tree, engine=LossyEngine())


def test_the_command(tree, weights_file, tmp_path, monkeypatch, crumb):
    opened = []

    class Fake(Here):
        def __init__(self, *arguments):
            opened.append(arguments)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            opened.append("closed")

    model, ray = tmp_path / "mine.safetensors", ("--engine", "ray", "--progress", "false")
    command = ["teach", model, tree, *ray, "--backbone", "small_cnn", "--image-size", 32, "--weights", weights_file]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        code, _, err = crumb(*command)
    assert code and 'pip install -e ".[ray]"' in err and not model.exists()
    code, _, err = crumb("teach", model, "--camera", 0, "--label", "a", *ray)
    assert code and "a camera belongs to one machine" in err
    monkeypatch.setattr("crumb_avalanche.cli.teach.RayCalls", Fake)
    code, out, err = crumb(*command, "--address", "head:6379")
    assert code == 0 and opened == [("head:6379", 1), "closed"] and f"learned c0: {CLIPS * FRAMES} images" in out, err
    assert len(Learner.load(model).classes) == CLASSES


class Noting(RayCalls):
    """Ray's workers, which note where each shard was learned."""

    def __init__(self, address, folder):
        super().__init__(address)
        self.folder = folder

    def call(self, function, *arguments, results=1):
        return super().call(noted, str(self.folder), function, *arguments, results=results)


def noted(folder, function, *arguments):
    import ray

    if function.__name__ == "teach_shard":
        (Path(folder) / f"{ray.get_runtime_context().get_node_id()} {uuid.uuid4()}").touch()
    return function(*arguments)


@pytest.mark.slow
def test_the_loss_of_a_ray_node_changes_no_bit(make, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    tree = write(tmp_path / "tree", classes=8, clips=12, frames=8)
    calm, disturbed = make(), make()
    calm.teach(tree, engine=Here())
    notes = tmp_path / "notes"
    notes.mkdir()
    shards, lost = len(shards_of([ClipFiles("", "", ("",) * 8)] * 96)), []

    def lose(images, done=[]):  # noqa: B006
        done.append(images)
        if len(done) > shards // 3 and not lost:
            lost.append(nodes[0].node_id)
            cluster.remove_node(nodes[0], allow_graceful=False)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        with Noting(cluster.address, notes) as engine:
            disturbed.teach(tree, engine=engine, progress=lose)
    finally:
        cluster.shutdown()
    found = [path.name.split()[0] for path in notes.iterdir()]
    assert lost and lost[0] in found and len(set(found)) == 2
    assert len(found) > shards  # those of the lost node were learned again
    assert same(calm, disturbed)
