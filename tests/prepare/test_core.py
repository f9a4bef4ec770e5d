"""`prepare` and `check`: from downloads to a table, and what a folder lacks."""

import re
import shutil

import numpy as np
import pytest
from fake_data import (
    ETH80_VIEWS,
    TOYBOX_CLIPS,
    cifar100_pixels,
    core50_names,
    eth80_clone_names,
    icub_names,
    ilab_names,
    image_tree_names,
    write_cifar100_archive,
    write_files,
    write_tiny,
    write_tiny_imagenet,
    write_toybox_videos,
)
from fake_videos import video_frame_number
from made_downloads import LocalServer, files, in_folder, pack, write_tar
from noted_bar import NotedBar
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from benchmarks_toybox_ilab.datasets.toybox import ToyboxFrames
from benchmarks_toybox_ilab.prepare import job
from benchmarks_toybox_ilab.prepare.core import take_inventory
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.job import Inventory
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import prepare as command
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.system.folder_lock import in_use, locked

CORE50 = core50_names((1, 2, 3), (1, 6), (10, 11, 30))
ILAB = ilab_names(("boat", "van"), (1,), range(1, 9), 15)
ICUB = icub_names({"part1": ("book",), "part3": ("mug",)}, (1, 2), 11)
IMAGENET = image_tree_names({"train": 2, "val": 1}, ("n00000001", "n00000002"), ".JPEG")
CIFAR100 = image_tree_names({"train": 2, "test": 1}, ("apple", "train"))


def table_of(name, root):
    return BENCHMARKS[name].frames(root)


def read_csv(root, name):
    table = FrameTable.from_csv(root / f"{name}.csv", root)
    assert table.read(0).size
    return table


@pytest.fixture
def server(tmp_path, publish):
    """A server of two objects of CORe50 in an archive, where `prepare` finds it."""
    download = write_files(tmp_path / "made", CORE50)
    content = pack(tmp_path / "x.zip", download, "core50_128x128/").read_bytes()
    with LocalServer(content) as server:
        publish("core50", f"{server.url}/core50_128x128.zip", server.md5)
        yield server


def test_a_download_that_breaks_off_resumes(tmp_path, run, server):
    root = tmp_path / "root"
    half = len(server.content) // 2
    server.stop_after = half
    words = r"core50_128x128.zip: the connection ended .*give it with --source"
    with pytest.raises(DownloadError, match=words):
        run("core50", root)
    assert files(root) == [".download/core50_128x128.zip.part"]
    assert run("core50", root) == []
    assert server.asked == ["", f"bytes={half}-"]


def test_what_is_missing_is_unpacked_again(tmp_path, run, server):
    root = tmp_path / "root"
    run("core50", root)
    (root / "core50_128x128" / CORE50[0]).unlink()
    assert run("core50", root) == []
    assert len(server.asked) == 1
    assert files(root / "core50_128x128") == sorted(CORE50)


def test_a_download_is_listed(tmp_path, run, said, server):
    root = tmp_path / "root"
    run("core50", root)
    table = read_csv(root, "core50")
    assert len(table) == 12
    assert table.path[0] == "core50_128x128/s1/o6/C_01_06_010.png"
    paths = [path.removeprefix("core50_128x128/") for path in table.path]
    assert paths == list(table_of("core50", root).path)
    report = "\n".join(said)
    assert "2 classes, 8 training and 4 test images; listed in" in report
    assert "These are not the paper's numbers; `crumb prepare core50" in report


@pytest.fixture
def mine(tmp_path):
    """An archive of one's own, with other files beside the images."""
    beside = ["s1/o1/notes.txt", "__MACOSX/s1/o1/C_01_01_010.png"]
    download = write_files(tmp_path / "made", [*CORE50, *beside])
    return pack(tmp_path / "mine.zip", download, "wrapped/core50_128x128/")


def test_an_archive_with_other_files(tmp_path, run, mine):
    assert run("core50", tmp_path / "root", mine) == []
    assert files(tmp_path / "root/core50_128x128") == sorted(CORE50)


def test_an_archive_with_a_wrong_checksum(tmp_path, run, mine):
    archive = mine.rename(tmp_path / "core50_128x128.zip")
    words = (
        r"core50_128x128.zip has the MD5 checksum .*, while that of .* is 745f33"
        r".*Download it: http://bias"
    )
    with pytest.raises(FrameTableError, match=words):
        run("core50", tmp_path / "root", archive)
    assert not (tmp_path / "root").exists()


LAID_OUT = pytest.mark.parametrize(
    ("name", "names", "inner"),
    [
        ("core50", CORE50, "core50_128x128"),
        ("ilab", ILAB, "iLab-2M-Light"),
        ("icub", ICUB, "icub"),
        ("imagenet", IMAGENET, "imagenet"),
        ("cifar100", CIFAR100, "cifar100"),
    ],
)


@LAID_OUT
def test_a_folder_that_has_the_layout_is_not_copied(
    tmp_path, run, said, name, names, inner
):
    source = write_files(tmp_path / "source" / inner, names).parent
    before = files(tmp_path)
    assert run(name, tmp_path / "root", source) == []
    assert files(tmp_path) == before and not (tmp_path / "root").exists()
    assert f"{source / inner} has the layout of {name} (2 classes, " in said[0]
    assert f"nothing was copied. Use --dataset-root {source} from now on" in said[0]


@LAID_OUT
def test_a_folder_that_has_the_layout_is_listed(tmp_path, run, name, names, inner):
    source = write_files(tmp_path / "source" / inner, names).parent
    assert run(name, source) == []
    table = read_csv(source, name)
    assert all(path.startswith(f"{inner}/") for path in table.path)
    assert len(table) == len(table_of(name, source))


@LAID_OUT
def test_the_folder_itself_may_be_root_and_source(tmp_path, run, name, names, inner):
    folder = write_files(tmp_path / "source" / inner, names)
    assert run(name, folder, folder) == []
    content = table_of(name, folder).content_hash()
    assert read_csv(folder, name).content_hash() == content
    assert table_of(name, folder.parent).content_hash() == content


OWN_ARCHIVES = pytest.mark.parametrize(
    ("name", "names"), [("ilab", ILAB), ("icub", ICUB), ("cifar100", CIFAR100)]
)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that writes a data set beside other files; all archives are large."""
    monkeypatch.setattr(job, "LARGE", 100)
    beside = ["README", "test_img/boat-i0001-b0001-c00-r01-l0-f2.jpg"]
    (tmp_path / "source").mkdir()
    (tmp_path / "root").mkdir()

    def write(names):
        return write_files(tmp_path / "made", [*names, *beside])

    return write


def check_unpacked(root, name, names, archives=()):
    """Check that a root holds the images, their list and no more."""
    assert files(root) == sorted([*names, f"{name}.csv", *archives])
    assert read_csv(root, name).content_hash() == table_of(name, root).content_hash()


@OWN_ARCHIVES
def test_an_archive(tmp_path, run, said, made, name, names):
    root = tmp_path / "root"
    archive = pack(tmp_path / "source/all.tar.gz", made(names), "outer/folder/")
    assert run(name, root, archive) == []
    assert said[0].startswith(f"reading the file list of {archive}")
    assert run(name, root, archive) == []
    check_unpacked(root, name, names)


@OWN_ARCHIVES
def test_a_folder_of_archives(tmp_path, run, made, name, names):
    root = tmp_path / "root"
    pack(tmp_path / "source/all.tar.gz", made(names), "outer/folder/")
    assert run(name, root, tmp_path / "source") == []
    assert run(name, root, tmp_path / "source") == []
    check_unpacked(root, name, names)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("c.tar.bz2", "w:bz2"),
        ("c.tbz2", "w:bz2"),
        ("c.tar.xz", "w:xz"),
        ("c.TXZ", "w:xz"),
    ],
)
def test_archives_of_other_compressions(tmp_path, run, made, name, mode):
    source = tmp_path / "source"
    write_tar(source / name, in_folder(made(ICUB)), mode)
    assert run("icub", tmp_path / "root", source) == []
    check_unpacked(tmp_path / "root", "icub", ICUB)


def test_a_folder_of_archives_of_parts(tmp_path, run, made):
    folder = made(ICUB)
    source = tmp_path / "source"
    pack(source / "part1.zip", folder / "part1", "part1/")
    pack(source / "part3.tar.gz", folder / "part3", "icubworld/part3/")
    assert run("icub", tmp_path / "root", source) == []
    check_unpacked(tmp_path / "root", "icub", ICUB)


def test_the_archive_of_eth80(tmp_path, run):
    clone = write_files(tmp_path / "clone", eth80_clone_names())
    archive = pack(tmp_path / "ETH-80-master.zip", clone, "ETH-80-master/")
    assert run("eth80", tmp_path / "root", archive) == []
    names = [f"cup{n}/cup{n}-{view}.png" for n in (1, 2, 3) for view in ETH80_VIEWS]
    check_unpacked(tmp_path / "root", "eth80", names)


def test_the_archive_of_tiny_imagenet(tmp_path, run):
    folder = write_tiny_imagenet(tmp_path / "made", ["n00000001", "n00000002"])
    archive = pack(tmp_path / "tiny.zip", folder, "tiny-imagenet-200/")
    assert run("tiny_imagenet", tmp_path / "root", archive) == []
    assert (tmp_path / "root/wnids.txt").is_file()
    assert len(read_csv(tmp_path / "root", "tiny_imagenet")) == 6


@pytest.fixture
def interrupted(tmp_path, run, made):
    """A root with one image of iCub less than the archive that was being unpacked."""
    archive = pack(tmp_path / "source/all.tar.gz", made(ICUB))
    stop = len(ICUB) - 1
    with pytest.raises(KeyboardInterrupt):
        run(
            "icub", tmp_path / "root", archive, progress=NotedBar(stop=(stop, stop + 1))
        )
    return tmp_path / "root"


def test_an_interrupted_preparation_is_told(interrupted):
    words = (
        f"icub in {interrupted} is not complete: 2 classes; the paper has 20; "
        f"`crumb prepare icub --dataset-root {interrupted} --check` lists the gaps"
    )
    with pytest.warns(UserWarning, match=re.escape(words)):
        BENCHMARKS["icub"].stream(interrupted)


def test_a_run_on_an_interrupted_preparation(interrupted):
    settings = RunSettings(
        benchmark="icub", dataset_root=str(interrupted), backbone="small_cnn"
    )
    with pytest.warns(UserWarning, match="is not complete: 2 classes; the paper has"):
        open_stream(RunPlan.of(settings))


def test_a_finished_part_of_a_data_set_is_quiet(interrupted, tmp_path, run, recwarn):
    run("icub", interrupted, tmp_path / "source/all.tar.gz")
    BENCHMARKS["icub"].stream(interrupted)
    assert not [warning for warning in recwarn if "not complete" in str(warning)]


def test_a_whole_data_set_was_asked_for(tmp_path):
    root = write_files(tmp_path, CIFAR100)
    with pytest.warns(UserWarning, match="cifar100 in .* is not complete: 2 classes; "):
        BENCHMARKS["cifar100"].stream(root, {}, True)


# CIFAR-100's root is a place for its own archive alone.
@pytest.mark.parametrize(("name", "names"), [("ilab", ILAB), ("icub", ICUB)])
def test_an_archive_in_the_root(tmp_path, run, made, name, names):
    root = tmp_path / "root"
    pack(root / "all.tar.gz", made(names), "outer/folder/")
    assert run(name, root) == []
    assert run(name, root) == []
    check_unpacked(root, name, names, ["all.tar.gz"])


@OWN_ARCHIVES
def test_a_missing_image_is_unpacked_again(tmp_path, run, said, made, name, names):
    root = tmp_path / "root"
    archive = pack(tmp_path / "source/all.tar.gz", made(names), "outer/folder/")
    run(name, root, archive)
    (root / names[0]).unlink()
    said.clear()
    assert run(name, root, archive) == []
    assert f"{archive}: 1 file unpacked" in said


@pytest.fixture
def both(tmp_path):
    """iLab and CORe50 below one root."""
    write_files(tmp_path / "ilab_core50/core50", CORE50)
    write_files(tmp_path / "ilab_core50/iLab-2M-Light", ILAB)
    return tmp_path / "ilab_core50"


def test_ilab_and_core50_below_one_root(tmp_path, run, both):
    assert run("ilab_core50", both) == []
    content = table_of("ilab_core50", both).content_hash()
    assert read_csv(both, "ilab_core50").content_hash() == content
    assert run("ilab_core50", tmp_path) == []
    path = read_csv(tmp_path, "ilab_core50").path[0]
    assert path.startswith("ilab_core50/")


def test_core50_without_ilab(tmp_path, run):
    write_files(tmp_path / "core50", CORE50)
    words = (
        r"has no folder iLab-2M-Light, but holds core50.*`crumb prepare ilab "
        r"--dataset-root ROOT/iLab-2M-Light`"
    )
    with pytest.raises(FrameTableError, match=words):
        run("ilab_core50", tmp_path)


def test_the_images_of_ilab_may_be_the_root(run, both, monkeypatch):
    images = both / "iLab-2M-Light" / "train_img"
    assert run("ilab", images) == []
    assert (images / "ilab.csv").exists()
    monkeypatch.chdir(images)
    assert len(table_of("ilab", ".")) == len(table_of("ilab", images))


# Image n of the fake archive; its labels take turns, and class "train" is a trap for
# the search of folders.
LABELS = ("apple", "train") * 5
IMAGES = {}
for number, label in enumerate(LABELS):
    split = "train" if number < 6 else "test"
    IMAGES[f"{split}/{label}/{label}_s_{number:06d}.png"] = number


@pytest.fixture
def cifar100(tmp_path, publish):
    """The distribution of CIFAR-100 as it was published, with ten images."""
    archive = tmp_path / "served/cifar-100-python.tar.gz"
    publish("cifar100", archive.as_uri(), write_cifar100_archive(archive))
    return archive


@pytest.mark.usefixtures("cifar100")
def test_writing_cifar100_resumes(tmp_path, run):
    root = tmp_path / "root"
    bar = NotedBar(stop=(4, 10))
    with pytest.raises(KeyboardInterrupt):
        run("cifar100", root, progress=bar)
    assert bar.seen[-1] == ("writing images", " images", 4, 10)
    written = [name for name in files(root) if name in IMAGES]
    times = [(root / name).stat().st_mtime_ns for name in written]
    assert len(written) >= 4
    assert run("cifar100", root, workers=3) == []
    assert [(root / name).stat().st_mtime_ns for name in written] == times


@pytest.mark.usefixtures("cifar100")
@pytest.mark.parametrize(("name", "number"), IMAGES.items())
def test_cifar100_is_written_without_loss(tmp_path, run, name, number):
    run("cifar100", tmp_path)
    with Image.open(tmp_path / name) as image:
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), cifar100_pixels(number))


@pytest.mark.usefixtures("cifar100")
def test_the_distribution_of_cifar100_is_listed(tmp_path, run):
    run("cifar100", tmp_path)
    count = {"train": 3, "test": 2}
    counts = read_csv(tmp_path, "cifar100").counts()
    assert counts == {"apple": count, "train": count}


def test_the_checksum_tells_cifar100(tmp_path, run, cifar100):
    renamed = cifar100.rename(tmp_path / "other-name.tgz")
    assert run("cifar100", tmp_path / "root", renamed) == []
    assert set(files(tmp_path / "root")) == {*IMAGES, "cifar100.csv"}


def test_imagenet_is_listed_in_place(tmp_path, run, said):
    write_files(tmp_path, IMAGENET)
    assert run("imagenet", tmp_path) == []
    assert "2 classes, 4 training and 2 test images" in said[0]
    assert files(tmp_path) == sorted([*IMAGENET, "imagenet.csv"])


LEFT = (
    ".imagenet.csv.0123456789abcdef.part",
    "..imagenet.csv.sha256.0123456789abcdef.part",
)


@pytest.mark.parametrize("name", LEFT)
def test_an_unfinished_list_of_a_killed_process(tmp_path, run, name):
    write_files(tmp_path, IMAGENET)
    (tmp_path / name).write_text("path,cl")
    run("imagenet", tmp_path)
    assert not (tmp_path / name).exists()


def test_images_of_imagenet_that_are_not_sorted(tmp_path, run):
    write_files(tmp_path, [*IMAGENET, "val/ILSVRC2012_val_00000001.JPEG"])
    words = r"must lie in one folder per class.*torchvision.datasets.ImageNet\("
    with pytest.raises(FrameTableError, match=words):
        run("imagenet", tmp_path)


def test_an_archive_of_imagenet_that_is_not_sorted(tmp_path, run):
    download = write_files(tmp_path / "val", ["ILSVRC2012_val_1.JPEG"])
    archive = pack(tmp_path / "ILSVRC2012_img_val.tar.gz", download)
    words = r"holds nothing of imagenet.*torchvision.datasets.ImageNet\(root, split"
    with pytest.raises(FrameTableError, match=words):
        run("imagenet", tmp_path / "root", archive)


@pytest.mark.parametrize("folder", ["nowhere", "."])
@pytest.mark.parametrize("name", ["toybox", "ilab"])
def test_errors_say_where_to_get_a_data_set(tmp_path, run, name, folder):
    root = tmp_path / folder
    with pytest.raises(FrameTableError) as raised:
        run(name, root)
    message = str(raised.value)
    assert f"{root} holds nothing of {name}" in message
    assert BENCHMARKS[name].files.source in message
    command = f"`crumb prepare {name} --dataset-root {root} --source DOWNLOADED`"
    assert command in message


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("toybox", "empty", "empty holds nothing of toybox"),
        (
            "core5",
            None,
            "no data set 'core5' to prepare; there are cifar100, clear10, clear100, c",
        ),
        (
            "ilab",
            "nowhere",
            "no file or folder .*nowhere; give your download of ilab as --source",
        ),
        ("ilab", "given/x.zip", r"x.zip is no archive"),
        ("ilab", "given/other.zip", r"other.zip holds nothing of ilab"),
    ],
)
def test_errors_say_what_to_give(tmp_path, run, name, source, words):
    (tmp_path / "empty").mkdir()
    folder = write_files(tmp_path / "given", ["a/b.txt"])
    pack(folder / "other.zip", folder)
    (folder / "x.zip").write_text("<html>")
    with pytest.raises(FrameTableError, match=words):
        run(name, tmp_path / "root", source and tmp_path / source)


def test_check_of_an_unknown_data_set(tmp_path):
    with pytest.raises(FrameTableError, match="no data set 'clip_folder'"):
        take_inventory("clip_folder", tmp_path)


def test_the_number_of_workers(tmp_path, run):
    words = "workers is 0, but must be a whole number of at least 1"
    with pytest.raises(ValueError, match=words):
        run("ilab", tmp_path, workers=0)


def test_a_full_disk(tmp_path, run, monkeypatch):
    def full(table, file):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(FrameTable, "to_csv", full)
    write_files(tmp_path, IMAGENET)
    words = r"No space left on device: .*imagenet.csv.*same command again, which res"
    with pytest.raises(FrameTableError, match=words):
        run("imagenet", tmp_path)


PAPER = "10 classes, 6000 training and 2250 test images"


@pytest.fixture
def whole(tmp_path):
    """The files of CORe50 that the paper uses, empty."""
    for name in core50_names(frames=range(10, 300, 20)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_check_of_the_paper_s_data_set(whole):
    lines = [f"core50 in {whole}: {PAPER}", "complete: everything that the paper uses"]
    assert take_inventory("core50", whole) == Inventory(present=lines, missing=[])


def test_check_of_a_data_set_that_lacks_an_image(whole):
    (whole / "s3/o7/C_03_07_050.png").unlink()
    assert take_inventory("core50", str(whole)) == Inventory(
        present=[f"core50 in {whole}: {PAPER.replace('2250', '2249')}"],
        missing=[
            "2249 test images; the paper has 2250",
            "class mobile_phone: 224 of 225 test images",
        ],
    )


@pytest.mark.skipif(
    not (TEST_DATA / "cifar100").is_dir(),
    reason="needs cifar100/cifar100_png.zip in CRUMB_TEST_DATA",
)
@pytest.mark.slow
def test_the_real_cifar100(tmp_path, run, said):
    assert run("cifar100", tmp_path, TEST_DATA / "cifar100/cifar100_png.zip") == []
    assert not take_inventory("cifar100", tmp_path).missing


@pytest.fixture
def core50(tmp_path):
    """Two objects of two classes of CORe50, in a training and a test session."""
    return write_tiny("core50", tmp_path / "data")


def test_a_data_set_is_prepared(done, core50):
    out = done("prepare", "core50", "--dataset-root", core50)
    assert (
        f"core50 in {core50}: 2 classes, 4 training and 4 test images; listed in "
        f"{core50 / 'core50.csv'}" in out
    )
    assert len(FrameTable.from_csv(core50 / "core50.csv", core50)) == 8


def test_missing_files_are_listed_while_others_write(refused, core50):
    with locked(core50):
        err = refused(
            "is not complete below",
            "prepare",
            "core50",
            "--dataset-root",
            core50,
            "--check",
        )
    assert not (core50 / "core50.csv").exists()
    title, *lines = err.splitlines()
    assert title == f"crumb prepare: core50 is not complete below {core50}:"
    assert "  4 training images; the paper has 6000" in lines
    assert "  class can: 0 of 600 training images, 0 of 225 test images" in lines
    assert all(line.startswith("  ") for line in lines)


@pytest.mark.parametrize(
    ("name", "root", "options", "words"),
    [
        (
            "core5",
            ".",
            (),
            "there is no data set 'core5' to prepare; there are cifar100, clear10",
        ),
        ("ilab", "root", (), "--source DOWNLOADED.*iLab-2M-Light.tar.gz"),
        ("ilab", ".", ("--workers", "-1"), "workers is -1; give 0 or more"),
    ],
)
def test_errors_are_one_line(refused, tmp_path, name, root, options, words):
    err = refused(words, "prepare", name, "--dataset-root", tmp_path / root, *options)
    assert err.count("\n") == 1
    assert not (tmp_path / "root").exists(), "a new root that stays empty"


def test_failures_are_a_list(refused, monkeypatch, tmp_path):
    failures = ["a.mp4: is cut off", "b.mp4: is no video"]

    def prepare_in_vain(*given, **options):
        return failures if in_use(tmp_path) else []

    monkeypatch.setattr(command, "prepare", prepare_in_vain)
    words = (
        "^crumb prepare: all is finished except for 2 that failed:\n"
        "  a.mp4: is cut off\n  b.mp4: is no video\n$"
    )
    refused(words, "prepare", "toybox", "--dataset-root", tmp_path)


def test_a_root_is_needed(refused):
    refused("give --dataset-root", "prepare", "ilab")


def test_a_name_is_needed(refused, tmp_path):
    refused("required: NAME", "prepare", "--dataset-root", tmp_path)


CLIPS = [("cup", 1, clip) for clip in TOYBOX_CLIPS]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    pytest.importorskip("av")
    return write_toybox_videos(tmp_path_factory.mktemp("videos"), CLIPS, seconds=1.2)


def toybox_frames(videos):
    """Return the names of the frames of these videos: two of each of ten clips."""
    names = []
    for path in videos.rglob("*.mp4"):
        stem = path.relative_to(videos).with_suffix("").as_posix()
        if not stem.endswith(("present", "absent")):
            names += [f"images/{stem}_1.png", f"images/{stem}_2.png"]
    return sorted(names)


def shown(root):
    """Return the names of the frames below a root."""
    names = [name for name in files(root) if name.startswith("images/")]
    return [name for name in names if "/." not in name]


def test_frames_of_a_folder_of_videos(videos, tmp_path, run):
    before = files(videos)
    assert run("toybox", tmp_path, videos) == []
    assert files(videos) == before
    assert shown(tmp_path) == toybox_frames(videos)
    first = (
        tmp_path / "images/households/cup_01_pivothead/cup_01_pivothead_rxplus_1.png"
    )
    second = first.with_name("cup_01_pivothead_rxplus_2.png")
    assert video_frame_number(first) == 0
    assert video_frame_number(second) == 5
    with Image.open(first) as image:
        assert image.size == (224, 224)


def test_a_folder_of_videos_is_listed(videos, tmp_path, run, said):
    bar = NotedBar()
    run("toybox", tmp_path, videos, progress=bar)
    listed = FrameTable.from_csv(tmp_path / "toybox.csv", tmp_path)
    assert listed.content_hash() == ToyboxFrames(tmp_path).content_hash()
    assert bar.seen[-1] == ("extracting frames", " videos", 10, 10)
    assert "1 class, 14 training and 6 test images" in said[0]


@pytest.mark.parametrize("wrapped", ["toybox/households/", "households/", ""])
def test_toybox_from_an_archive(videos, tmp_path, run, said, wrapped):
    root = tmp_path / "root"
    archive = pack(tmp_path / "households.zip", videos / "households", wrapped)
    assert run("toybox", root, archive) == []
    assert shown(root) == toybox_frames(videos)
    assert files(root / "videos") == files(videos)
    assert said[0] == f"{archive}: 12 files unpacked"


def test_toybox_from_a_folder_of_archives(videos, tmp_path, run, said):
    source = tmp_path / "source"
    source.mkdir()
    archive = pack(source / "households.zip", videos / "households", "households/")
    run("toybox", tmp_path / "root", archive)
    said.clear()
    assert run("toybox", tmp_path / "root", source) == []
    assert said[0] == f"{archive}: 0 files unpacked"


@pytest.fixture
def bad(videos, tmp_path):
    """A copy of the videos in `source`, of which this one is damaged."""
    shutil.copytree(videos, tmp_path / "source")
    bad = tmp_path / "source/households/cup_01_pivothead/cup_01_pivothead_tz.mp4"
    bad.write_bytes(b"no video")
    return bad


def test_a_bad_video_does_not_stop_the_others(tmp_path, run, bad):
    failures = run("toybox", tmp_path / "root", tmp_path / "source")
    assert len(failures) == 2
    assert failures[0].startswith(f"{bad}: ")
    assert "none with all 10 clips" in failures[1]  # then no object is left for a table
    assert len(shown(tmp_path / "root")) == 18


def test_a_bad_video_that_is_replaced(videos, tmp_path, run, bad):
    run("toybox", tmp_path / "root", tmp_path / "source")
    shutil.copy(videos / bad.relative_to(tmp_path / "source"), bad)
    assert run("toybox", tmp_path / "root", tmp_path / "source") == []
    assert shown(tmp_path / "root") == toybox_frames(videos)


CUP = "cup_01_pivothead"


@pytest.mark.parametrize(
    "name",
    [
        f"households/{CUP}/cup_02_pivothead_tx",
        f"households/{CUP}/{CUP}_spin",
        f"animals/{CUP}/{CUP}_tx",
    ],
)
def test_a_video_that_does_not_fit_is_named(tmp_path, run, name):
    write_files(tmp_path, [f"{name}.mp4"])
    words = rf"{name}.mp4 does not fit .*: <source>.* in households cup, mug, .*rxpl"
    with pytest.raises(FrameTableError, match=words):
        run("toybox", tmp_path / "root", tmp_path)


def test_a_video_that_is_repeated_is_named(tmp_path, run):
    name = f"households/{CUP}/{CUP}_rxplus.mp4"
    write_files(tmp_path, [name, f"copy/{name}"])
    words = (
        f"{tmp_path / 'copy' / name} and {tmp_path / name} are the same clip of "
        "Toybox; keep one of them"
    )
    with pytest.raises(FrameTableError, match=re.escape(words)):
        run("toybox", tmp_path / "root", tmp_path)
