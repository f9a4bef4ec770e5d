import hashlib
import pickle
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from fake_data import (
    cifar100_pixels,
    image_tree_names,
    write_cifar100_archive,
    write_files,
)
from local_server import LocalServer
from PIL import Image
from prepare_runs import files, pack, read_csv
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets.cifar100 import CIFAR100Frames
from benchmarks_toybox_ilab.prepare.core import check
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.tables.frame import FrameTableError

DATA = TEST_DATA
CIFAR100 = image_tree_names({"train": 2, "test": 1}, ("apple", "train"))


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """A small CIFAR-100 in its distributed form, which torchvision accepts as the real one."""
    from torchvision.datasets import CIFAR100

    archive = tmp_path / "served/cifar-100-python.tar.gz"
    md5 = write_cifar100_archive(archive)
    monkeypatch.setattr(CIFAR100, "tgz_md5", md5[""])
    monkeypatch.setattr(CIFAR100, "train_list", [["train", md5["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", md5["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": md5["meta"]})
    monkeypatch.setattr(CIFAR100, "url", archive.as_uri())
    return archive


# Image n of the fake archive; its labels take turns, and class "train" is a trap for the search of folders.
IMAGES = {
    "train/apple/apple_s_000000.png": 0,
    "train/train/train_s_000001.png": 1,
    "train/apple/apple_s_000002.png": 2,
    "train/train/train_s_000003.png": 3,
    "train/apple/apple_s_000004.png": 4,
    "train/train/train_s_000005.png": 5,
    "test/apple/apple_s_000006.png": 6,
    "test/train/train_s_000007.png": 7,
    "test/apple/apple_s_000008.png": 8,
    "test/train/train_s_000009.png": 9,
}


def images_of(root):
    return [name for name in files(root) if name.startswith(("train/", "test/"))]


def test_cifar100_is_downloaded_by_torchvision_and_written_without_loss(distribution, tmp_path, run, monkeypatch):
    from torchvision.datasets import CIFAR100

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    root = tmp_path / "root"
    with LocalServer(distribution.read_bytes()) as server:
        monkeypatch.setattr(CIFAR100, "url", f"{server.url}/cifar-100-python.tar.gz")
        assert run("cifar100", root, workers=3) == []
    assert images_of(root) == sorted(IMAGES)
    for name, number in IMAGES.items():
        with Image.open(root / name) as image:
            assert image.format == "PNG" and np.array_equal(np.asarray(image), cifar100_pixels(number)), name
    table = read_csv(root, "cifar100")
    assert table.content_hash() == CIFAR100Frames(root).content_hash()
    assert table.counts() == {"apple": {"train": 3, "test": 2}, "train": {"train": 3, "test": 2}}


def test_cifar100_resumes(distribution, tmp_path, run):
    root, seen = tmp_path / "root", []

    @contextmanager
    def stopping(title, unit):
        def step(done, total):
            seen.append((title, unit, done, total))
            if done == 4:
                raise KeyboardInterrupt

        yield step

    with pytest.raises(KeyboardInterrupt):
        run("cifar100", root, distribution, progress=stopping)
    assert seen[0] == ("writing images", " images", 1, 10) and len(seen) == 4
    assert set(images_of(root)) <= set(IMAGES)
    times = {name: (root / name).stat().st_mtime_ns for name in images_of(root)}
    assert len(times) >= 4
    run("cifar100", root)  # from what torchvision has unpacked
    assert images_of(root) == sorted(IMAGES)
    assert all((root / name).stat().st_mtime_ns == time for name, time in times.items())


def test_cifar100_from_the_archive_without_a_connection(distribution, tmp_path, run, monkeypatch):
    from torchvision.datasets import CIFAR100

    monkeypatch.setattr(CIFAR100, "url", "http://127.0.0.1:9/none")
    run("cifar100", tmp_path / "a", distribution)
    run("cifar100", tmp_path / "b", distribution.parent)
    (tmp_path / "c").mkdir()
    shutil.copy(distribution, tmp_path / "c")
    run("cifar100", tmp_path / "c")
    for name in "abc":
        assert images_of(tmp_path / name) == sorted(IMAGES)
    renamed = distribution.rename(tmp_path / "other-name.tgz")  # the checksum tells it
    run("cifar100", tmp_path / "d", renamed)
    assert images_of(tmp_path / "d") == sorted(IMAGES)


def test_folders_in_upper_case_are_found_and_written_in_lower_case(tmp_path, run):
    folder = write_files(tmp_path / "made", [name.replace("t", "T", 1) for name in IMAGES])
    run("cifar100", tmp_path / "root", pack(tmp_path / "x.zip", folder))
    assert images_of(tmp_path / "root") == sorted(IMAGES)


def test_cifar100_that_cannot_be_downloaded(distribution, tmp_path, run, monkeypatch):
    from torchvision.datasets import CIFAR100

    monkeypatch.setattr(CIFAR100, "url", (tmp_path / "nowhere.tar.gz").as_uri())
    words = (
        r"cannot download file:.*nowhere.tar.gz: .*download cifar-100-python.tar.gz elsewhere and give it with --source"
    )
    with pytest.raises(DownloadError, match=words):
        run("cifar100", tmp_path / "root")
    broken = tmp_path / "broken/cifar-100-python.tar.gz"
    broken.parent.mkdir()
    broken.write_bytes(distribution.read_bytes()[:-20])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer(broken.read_bytes()) as server:
        monkeypatch.setattr(CIFAR100, "url", f"{server.url}/x.tar.gz")
        with pytest.raises(DownloadError, match=r"cannot download .*x.tar.gz: .*corrupted.*"):
            run("cifar100", tmp_path / "root")
    assert not images_of(tmp_path / "root")
    md5 = hashlib.md5(broken.read_bytes()).hexdigest()
    with pytest.raises(FrameTableError, match=rf"has the MD5 checksum {md5}, but {CIFAR100.tgz_md5} is expected"):
        run("cifar100", tmp_path / "root", broken)


def test_cifar100_without_names_or_with_unusual_ones(tmp_path):
    from benchmarks_toybox_ilab.prepare.cifar100_files import _names

    def named(filenames):
        (tmp_path / "train").write_bytes(pickle.dumps({"filenames": filenames} if filenames else {}))
        return _names(tmp_path / "train", [0, 1, 0])

    assert named(["a.png", "b", "c-1.png"]) == ["a.png", "b.png", "c-1.png"]
    assert named(["a.png", "a.png", "a.png"]) == ["a.png", "a.png", "a_00002.png"]
    for odd in (None, ["a.png"], ["a.png", "../b.png", "c.png"], ["a.png", ".png", "c.png"]):
        assert named(odd) == ["00000.png", "00001.png", "00002.png"]


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "folder", "folder below"])
def test_cifar100_from_a_tree_of_images(tmp_path, run, kind):
    folder = write_files(tmp_path / "made/cifar100", [*CIFAR100, "README.md", "train/apple/notes.txt"])
    source = {"folder": folder, "folder below": folder.parent}.get(kind)
    source = source or pack(tmp_path / f"tree.{kind}", folder, "some/cifar100/")
    assert run("cifar100", tmp_path / "root", source) == []
    assert files(tmp_path / "root") == sorted([*CIFAR100, "cifar100.csv"])
    assert read_csv(tmp_path / "root", "cifar100").content_hash() == CIFAR100Frames(folder).content_hash()
    assert (tmp_path / "root" / CIFAR100[0]).read_bytes() == (folder / CIFAR100[0]).read_bytes()


def test_a_tree_is_used_in_place_and_may_be_copied_below_itself_repeatedly(tmp_path, run):
    write_files(tmp_path, CIFAR100)
    for source in (None, tmp_path):  # nothing to copy
        assert run("cifar100", tmp_path, source) == [] and files(tmp_path) == sorted([*CIFAR100, "cifar100.csv"])
    for _ in range(2):
        assert run("cifar100", tmp_path / "out", tmp_path) == [] and images_of(tmp_path / "out") == sorted(CIFAR100)


@pytest.mark.skipif(not (DATA / "cifar100").is_dir(), reason="needs cifar100/cifar100_png.zip in CRUMB_TEST_DATA")
@pytest.mark.slow
def test_the_real_cifar100(tmp_path, run, said):
    assert run("cifar100", tmp_path, DATA / "cifar100/cifar100_png.zip") == []
    assert said[-1].endswith(
        f"100 classes, 50000 training and 10000 test images; listed in {tmp_path / 'cifar100.csv'}"
    )
    assert check("cifar100", tmp_path).complete
