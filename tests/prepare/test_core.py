"""`prepare` and `check`: from downloads, archives and folders to a table, and what a folder lacks."""

import re
import shutil

import numpy as np
import pytest
from fake_data import (
    TOYBOX_CLIPS,
    cifar100_pixels,
    core50_names,
    icub_names,
    ilab_names,
    image_tree_names,
    write_cifar100_archive,
    write_files,
    write_tiny,
    write_toybox_videos,
)
from fake_videos import video_frame_number
from made_downloads import LocalServer, files, pack
from noted_bar import NotedBar
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from benchmarks_toybox_ilab.datasets.toybox import ToyboxFrames
from benchmarks_toybox_ilab.prepare import job
from benchmarks_toybox_ilab.prepare.core import check
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import prepare as command
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


def test_a_download_that_breaks_off_resumes_and_is_unpacked_and_listed(
    tmp_path, run, said, publish
):
    content = pack(
        tmp_path / "x.zip", write_files(tmp_path / "made", CORE50), "core50_128x128/"
    ).read_bytes()
    root = tmp_path / "root"
    with LocalServer(content) as server:
        publish("core50", f"{server.url}/core50_128x128.zip", server.md5)
        server.stop_after = len(content) // 2
        with pytest.raises(
            DownloadError,
            match=r"core50_128x128.zip: the connection ended .*give it with --source",
        ):
            run("core50", root)
        assert files(root) == [".download/core50_128x128.zip.part"]
        assert run("core50", root) == [] and server.asked == [
            "",
            f"bytes={len(content) // 2}-",
        ]
        (root / "core50_128x128" / CORE50[0]).unlink()
        assert (
            run("core50", root) == [] and len(server.asked) == 2
        )  # begun here, so what is missing is unpacked again
    assert files(root / "core50_128x128") == sorted(CORE50)
    table = read_csv(root, "core50")
    assert table.path[0] == "core50_128x128/s1/o6/C_01_06_010.png"
    assert [row.split("/", 1)[1] for row in table.path] == list(
        table_of("core50", root).path
    ) and len(table) == 12
    assert "2 classes, 8 training and 4 test images; listed in" in "\n".join(said)
    assert "These are not the paper's numbers; `crumb prepare core50" in "\n".join(said)


def test_an_archive_with_other_files_and_one_with_a_wrong_checksum(tmp_path, run):
    folder = write_files(
        tmp_path / "made",
        [*CORE50, "s1/o1/notes.txt", "__MACOSX/s1/o1/C_01_01_010.png"],
    )
    archive = pack(tmp_path / "mine.zip", folder, "wrapped/core50_128x128/")
    assert run("core50", tmp_path / "root", archive) == []
    assert files(tmp_path / "root/core50_128x128") == sorted(CORE50)
    archive = archive.rename(tmp_path / "core50_128x128.zip")
    words = r"core50_128x128.zip has the MD5 checksum .*, while that of .* is 745f33.*Download it: http://bias"
    with pytest.raises(FrameTableError, match=words):
        run("core50", tmp_path / "other", archive)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "names", "inner"),
    [
        ("core50", CORE50, "core50_128x128"),
        ("ilab", ILAB, "iLab-2M-Light"),
        ("icub", ICUB, "icub"),
        ("imagenet", IMAGENET, "imagenet"),
        ("cifar100", CIFAR100, "cifar100"),
    ],
)
def test_a_folder_that_has_the_layout_is_used_where_it_is(
    tmp_path, run, said, name, names, inner
):
    source = write_files(tmp_path / "source" / inner, names).parent
    before = files(tmp_path)
    assert run(name, tmp_path / "root", source) == []
    assert files(tmp_path) == before and not (tmp_path / "root").exists()
    assert f"{source / inner} has the layout of {name} (2 classes, " in said[0]
    assert f"nothing was copied. Use --dataset-root {source} from now on" in said[0]
    assert run(name, source) == []
    table = read_csv(source, name)
    assert all(path.startswith(f"{inner}/") for path in table.path) and len(
        table
    ) == len(table_of(name, source))
    assert run(name, source / inner, source / inner) == []  # the same folder twice
    assert (
        read_csv(source / inner, name).content_hash()
        == table_of(name, source / inner).content_hash()
    )
    assert (
        table_of(name, source).content_hash()
        == table_of(name, source / inner).content_hash()
    )


@pytest.mark.parametrize("packed", ["x.tar.gz", "in the root", "folder of archives"])
@pytest.mark.parametrize(
    ("name", "names"), [("ilab", ILAB), ("icub", ICUB), ("cifar100", CIFAR100)]
)
def test_data_sets_from_their_archives(
    tmp_path, run, said, packed, name, names, monkeypatch
):
    monkeypatch.setattr(job, "LARGE", 100)
    made = write_files(
        tmp_path / "made",
        [*names, "README", "test_img/boat-i0001-b0001-c00-r01-l0-f2.jpg"],
    )
    root, source = tmp_path / "root", tmp_path / "source"
    for folder in (root, source):
        folder.mkdir()
    if packed == "in the root" and name == "cifar100":
        return  # which is a place for its own archive alone
    archive = pack(
        (root if packed == "in the root" else source) / "all.tar.gz",
        made,
        "outer/folder/",
    )
    if packed == "folder of archives" and name == "icub":
        archive.unlink()
        pack(source / "part1.zip", made / "part1", "part1/")
        pack(source / "part3.tar.gz", made / "part3", "icubworld/part3/")
    given = {"x.tar.gz": archive, "in the root": None, "folder of archives": source}[
        packed
    ]
    for _ in range(2):
        assert run(name, root, given) == []
    assert files(root) == sorted(
        [*names, f"{name}.csv", *([] if given else ["all.tar.gz"])]
    )
    assert read_csv(root, name).content_hash() == table_of(name, root).content_hash()
    (root / names[0]).unlink()
    said.clear()
    assert run(name, root, given) == [] and any(
        line.endswith(": 1 file unpacked") for line in said
    )
    assert (
        said[0].startswith("reading the file list of ") and "all.tar.gz" in said[0]
    ) or "part1" in said[0]


def test_ilab_and_core50_below_one_root(tmp_path, run, monkeypatch):
    both = tmp_path / "ilab_core50"
    write_files(both / "core50", CORE50)
    words = r"has no folder iLab-2M-Light, but holds core50.*`crumb prepare ilab --dataset-root ROOT/iLab-2M-Light`"
    with pytest.raises(FrameTableError, match=words):
        run("ilab_core50", both)
    write_files(both / "iLab-2M-Light", ILAB)
    assert run("ilab_core50", both) == [] and run("ilab_core50", tmp_path) == []
    assert (
        read_csv(both, "ilab_core50").content_hash()
        == table_of("ilab_core50", both).content_hash()
    )
    assert read_csv(tmp_path, "ilab_core50").path[0].startswith("ilab_core50/")
    images = both / "iLab-2M-Light" / "train_img"
    assert run("ilab", images) == [] and (images / "ilab.csv").exists()
    monkeypatch.chdir(images)
    assert len(table_of("ilab", ".")) == len(table_of("ilab", images))


# Image n of the fake archive; its labels take turns, and class "train" is a trap for
# the search of folders.
IMAGES = {
    f"{'train' if number < 6 else 'test'}/{name}/{name}_s_{number:06d}.png": number
    for number, name in enumerate(("apple", "train") * 5)
}


def test_the_distribution_of_cifar100_is_written_without_loss_and_resumes(
    tmp_path, run, publish
):
    archive = tmp_path / "served/cifar-100-python.tar.gz"
    publish("cifar100", archive.as_uri(), write_cifar100_archive(archive))
    root, bar = tmp_path / "root", NotedBar(stop=(4, 10))
    with pytest.raises(KeyboardInterrupt):
        run("cifar100", root, progress=bar)
    assert bar.seen[-1] == ("writing images", " images", 4, 10)
    times = {
        name: (root / name).stat().st_mtime_ns for name in files(root) if name in IMAGES
    }
    assert len(times) >= 4
    assert run("cifar100", root, workers=3) == []
    assert all((root / name).stat().st_mtime_ns == time for name, time in times.items())
    for name, number in IMAGES.items():
        with Image.open(root / name) as image:
            assert image.format == "PNG" and np.array_equal(
                np.asarray(image), cifar100_pixels(number)
            ), name
    assert read_csv(root, "cifar100").counts() == {
        name: {"train": 3, "test": 2} for name in ("apple", "train")
    }
    renamed = archive.rename(tmp_path / "other-name.tgz")  # the checksum tells it
    assert run("cifar100", tmp_path / "again", renamed) == []
    assert {*files(tmp_path / "again")} == {*IMAGES, "cifar100.csv"}


def test_imagenet_is_listed_in_place_or_says_what_sorts_it(tmp_path, run, said):
    root = write_files(tmp_path / "root", IMAGENET)
    for name in (
        ".imagenet.csv.0123456789abcdef.part",
        "..imagenet.csv.sha256.0123456789abcdef.part",
    ):  # left by a killed process
        (root / name).write_text("path,cl")
    assert (
        run("imagenet", root) == []
        and "2 classes, 4 training and 2 test images" in said[0]
    )
    assert files(root) == sorted([*IMAGENET, "imagenet.csv"])
    write_files(root, ["val/ILSVRC2012_val_00000001.JPEG"])
    with pytest.raises(
        FrameTableError,
        match=r"must lie in one folder per class.*torchvision.datasets.ImageNet\(",
    ):
        run("imagenet", root)
    archive = pack(
        tmp_path / "ILSVRC2012_img_val.tar.gz",
        write_files(tmp_path / "val", ["ILSVRC2012_val_1.JPEG"]),
    )
    with pytest.raises(
        FrameTableError,
        match=r"holds nothing of imagenet.*torchvision.datasets.ImageNet\(root, split",
    ):
        run("imagenet", tmp_path / "other", archive)


def test_errors_say_where_to_get_a_data_set_and_what_to_give(
    tmp_path, run, monkeypatch
):
    (tmp_path / "empty").mkdir()
    source, given = tmp_path / "nowhere", tmp_path / "given"
    archive = pack(write_files(given, ["a/b.txt"]) / "other.zip", given)
    (given / "x.zip").write_text("<html>")
    for name in ("toybox", "ilab"):
        for root in (source, tmp_path):
            with pytest.raises(FrameTableError) as raised:
                run(name, root)
            message = str(raised.value)
            assert (
                f"{root} holds nothing of {name}" in message
                and BENCHMARKS[name].files.source in message
            )
            assert (
                f"`crumb prepare {name} --dataset-root {root} --source DOWNLOADED`"
                in message
            )
    for call, words in (
        (
            lambda: run("toybox", source, tmp_path / "empty"),
            "empty holds nothing of toybox",
        ),
        (
            lambda: run("core5", tmp_path),
            "no data set 'core5' to prepare; there are cifar100, clear10, clear100, core50",
        ),
        (lambda: check("clip_folder", tmp_path), "no data set 'clip_folder'"),
        (
            lambda: run("ilab", tmp_path, source),
            "no file or folder .*nowhere; give your download of ilab as --source",
        ),
        (
            lambda: run("ilab", tmp_path, workers=0),
            "workers is 0, but must be a whole number of at least 1",
        ),
        (lambda: run("ilab", source, given / "x.zip"), "x.zip is no archive"),
        (lambda: run("ilab", source, archive), "other.zip holds nothing of ilab"),
    ):
        with pytest.raises(ValueError, match=words):
            call()

    def full(table, file):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(FrameTable, "to_csv", full)
    write_files(tmp_path / "images", IMAGENET)
    with pytest.raises(
        FrameTableError,
        match=r"No space left on device: .*imagenet.csv.*same command again, which res",
    ):
        run("imagenet", tmp_path / "images")


def test_check_of_the_paper_s_data_set(tmp_path):
    for name in core50_names(frames=range(10, 300, 20)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    heading = f"core50 in {tmp_path}: 10 classes, 6000 training and 2250 test images"
    assert check("core50", tmp_path) == (
        [heading, "complete: everything that the paper uses"],
        True,
    )
    (tmp_path / "s3/o7/C_03_07_050.png").unlink()
    lines = [heading.replace("2250", "2249"), "2249 test images; the paper has 2250"]
    lines += ["class mobile_phone: 224 of 225 test images"]
    assert check("core50", str(tmp_path)) == (lines, False)


@pytest.mark.skipif(
    not (TEST_DATA / "cifar100").is_dir(),
    reason="needs cifar100/cifar100_png.zip in CRUMB_TEST_DATA",
)
@pytest.mark.slow
def test_the_real_cifar100(tmp_path, run, said):
    assert run("cifar100", tmp_path, TEST_DATA / "cifar100/cifar100_png.zip") == []
    assert check("cifar100", tmp_path)[1]


@pytest.fixture
def core50(tmp_path):
    """Two objects of two classes of CORe50, in a training and a test session."""
    return write_tiny("core50", tmp_path / "data")


def test_a_data_set_is_prepared(done, core50):
    out = done("prepare", "core50", "--dataset-root", core50)
    assert (
        f"core50 in {core50}: 2 classes, 4 training and 4 test images; listed in {core50 / 'core50.csv'}"
        in out
    )
    assert len(FrameTable.from_csv(core50 / "core50.csv", core50)) == 8


def test_missing_files_are_listed_on_standard_error_also_while_others_write(
    refused, core50
):
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


def test_errors_are_one_line_and_failures_a_list(refused, monkeypatch, tmp_path):
    for given, words in {
        (
            "core5",
            "--dataset-root",
            tmp_path,
        ): "there is no data set 'core5' to prepare; there are cifar100, clear10",
        (
            "ilab",
            "--dataset-root",
            tmp_path / "root",
        ): "--source DOWNLOADED.*iLab-2M-Light.tar.gz",
        (
            "ilab",
            "--dataset-root",
            tmp_path,
            "--workers",
            "-1",
        ): "workers is -1; give 0 or more",
    }.items():
        assert refused(words, "prepare", *given).count("\n") == 1
    assert not (tmp_path / "root").exists(), "a new root that stays empty"
    failures = ["a.mp4: is cut off", "b.mp4: is no video"]
    monkeypatch.setattr(
        command, "prepare", lambda *given: failures if in_use(tmp_path) else []
    )
    failed = "^crumb prepare: all is finished except for 2 that failed:\n  a.mp4: is cut off\n  b.mp4: is no video\n$"
    refused(failed, "prepare", "toybox", "--dataset-root", tmp_path)
    refused("give --dataset-root", "prepare", "ilab")
    refused("required: NAME", "prepare", "--dataset-root", tmp_path)


CLIPS = [("cup", 1, clip) for clip in TOYBOX_CLIPS]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    pytest.importorskip("av")
    return write_toybox_videos(tmp_path_factory.mktemp("videos"), CLIPS, seconds=1.2)


def toybox_frames(videos):
    """Names of the frames of these videos: two of each of ten clips."""
    stems = [
        path.relative_to(videos).with_suffix("").as_posix()
        for path in videos.rglob("*.mp4")
    ]
    used = [stem for stem in stems if not stem.endswith(("present", "absent"))]
    return sorted(f"images/{stem}_{number}.png" for stem in used for number in (1, 2))


def shown(root):
    return [
        name for name in files(root) if name.startswith("images/") and "/." not in name
    ]


def test_toybox_from_a_folder_of_videos(videos, tmp_path, run, said):
    bar, before = NotedBar(), files(videos)
    assert run("toybox", tmp_path, videos, progress=bar) == []
    assert files(videos) == before and shown(tmp_path) == toybox_frames(videos)
    cup = tmp_path / "images/households/cup_01_pivothead"
    assert [
        video_frame_number(cup / f"cup_01_pivothead_rxplus_{number}.png")
        for number in (1, 2)
    ] == [0, 5]
    with Image.open(cup / "cup_01_pivothead_rxplus_1.png") as image:
        assert image.size == (224, 224)
    listed = FrameTable.from_csv(tmp_path / "toybox.csv", tmp_path)
    assert listed.content_hash() == ToyboxFrames(tmp_path).content_hash()
    assert bar.seen[-1] == ("extracting frames", " videos", 10, 10)
    assert "1 class, 14 training and 6 test images" in said[0]


@pytest.mark.parametrize("wrapped", ["toybox/households/", "households/", ""])
def test_toybox_from_archives(videos, tmp_path, run, said, wrapped):
    source = tmp_path / "source"
    source.mkdir()
    archive = pack(source / "households.zip", videos / "households", wrapped)
    assert run("toybox", tmp_path / "root", archive) == []
    assert shown(tmp_path / "root") == toybox_frames(videos)
    assert (
        files(tmp_path / "root/videos") == files(videos)
        and said[0] == f"{archive}: 12 files unpacked"
    )
    said.clear()
    assert (
        run("toybox", tmp_path / "root", source) == []
    )  # a folder of archives; nothing left to do
    assert said[0] == f"{archive}: 0 files unpacked"


def test_a_bad_video_does_not_stop_the_others(videos, tmp_path, run):
    source = tmp_path / "source"
    shutil.copytree(videos, source)
    bad = source / "households/cup_01_pivothead/cup_01_pivothead_tz.mp4"
    bad.write_bytes(b"no video")
    for root in (tmp_path / "root", tmp_path / "again"):
        failures = run("toybox", root, source)
        assert failures[0].startswith(f"{bad}: ") and len(shown(root)) == 18
        assert (
            "none with all 10 clips" in failures[1] and len(failures) == 2
        )  # then no object is left for a table
    shutil.copy(videos / bad.relative_to(source), bad)
    assert run("toybox", tmp_path / "root", source) == []
    assert shown(tmp_path / "root") == toybox_frames(videos)


def test_a_video_that_does_not_fit_or_is_repeated_is_named(tmp_path, run):
    cup = "cup_01_pivothead"
    for name in (
        f"households/{cup}/cup_02_pivothead_tx",
        f"households/{cup}/{cup}_spin",
        f"animals/{cup}/{cup}_tx",
    ):
        write_files(tmp_path, [f"{name}.mp4"])
        words = (
            rf"{name}.mp4 does not fit .*: <source>.* in households cup, mug, .*rxpl"
        )
        with pytest.raises(FrameTableError, match=words):
            run("toybox", tmp_path / "root", tmp_path)
        (tmp_path / f"{name}.mp4").unlink()
    name = f"households/{cup}/{cup}_rxplus.mp4"
    write_files(tmp_path, [name, f"copy/{name}"])
    words = f"{tmp_path / 'copy' / name} and {tmp_path / name} are the same clip of Toybox; keep one of them"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        run("toybox", tmp_path / "root", tmp_path)
