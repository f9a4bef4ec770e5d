import hashlib
from dataclasses import replace

import pytest
from fake_data import (
    core50_names,
    icub_names,
    ilab_names,
    image_tree_names,
    write_files,
    write_tiny_imagenet,
)
from local_server import LocalServer
from prepare_runs import files, pack, read_csv

from benchmarks_toybox_ilab.datasets import core50
from benchmarks_toybox_ilab.datasets.core50 import CORe50Frames
from benchmarks_toybox_ilab.datasets.icub import ICubFrames
from benchmarks_toybox_ilab.datasets.ilab import ILabFrames
from benchmarks_toybox_ilab.datasets.ilab_core50 import ILabCORe50Frames
from benchmarks_toybox_ilab.datasets.imagenet import ImageNetFrames
from benchmarks_toybox_ilab.datasets.tiny_imagenet import TinyImageNetFrames
from benchmarks_toybox_ilab.prepare import sources as _prepare_sources
from benchmarks_toybox_ilab.prepare.core import check
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.sources import DATA_SETS
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

CORE50 = core50_names((1, 2, 3), (1, 6), (10, 11, 30))
ILAB = ilab_names(("boat", "van"), (1,), range(1, 9), 15)
ICUB = icub_names({"part1": ("book",), "part3": ("mug",)}, (1, 2), 11)
IMAGENET = image_tree_names({"train": 2, "val": 1}, ("n00000001", "n00000002"), ".JPEG")


def published_at(monkeypatch, name, url, md5=None):
    """Let a data set be published elsewhere, with another checksum."""
    data = DATA_SETS[name]
    monkeypatch.setitem(DATA_SETS, name, replace(data, url=url, md5=md5 or data.md5))


def test_core50_is_downloaded_unpacked_and_listed(tmp_path, run, said, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = write_files(tmp_path / "made", CORE50)
    content = pack(tmp_path / "x.zip", folder, "core50_128x128/").read_bytes()
    root = tmp_path / "root"
    with LocalServer(content) as server:
        published_at(monkeypatch, "core50", f"{server.url}/core50_128x128.zip", server.md5)
        server.stop_after = len(content) // 2
        with pytest.raises(DownloadError, match=r"core50_128x128.zip: the connection ended .*give it with --source"):
            run("core50", root)
        assert files(root) == [".download/core50_128x128.zip.part"]
        assert run("core50", root) == []
        assert server.asked == ["", f"bytes={len(content) // 2}-"]
    assert files(root / "core50_128x128") == sorted(CORE50)
    table = read_csv(root, "core50")
    assert table.path[0] == "core50_128x128/s1/o6/C_01_06_010.png"
    assert [row.split("/", 1)[1] for row in table.path] == list(CORe50Frames(root).path) and len(table) == 2 * 3 * 2
    assert "2 classes, 8 training and 4 test images; listed in" in "\n".join(said)
    assert "These are not the paper's numbers; `crumb prepare core50" in "\n".join(said)


def test_core50_is_not_downloaded_if_it_is_complete_or_was_put_there_by_the_user(tmp_path, run, monkeypatch):
    write_files(tmp_path, CORE50)
    monkeypatch.setattr(_prepare_sources, "download", lambda *arguments: pytest.fail("downloads"))
    assert run("core50", tmp_path) == []
    assert read_csv(tmp_path, "core50").content_hash() == CORe50Frames(tmp_path).content_hash()
    (tmp_path / ".download").mkdir()
    monkeypatch.setattr(core50, "missing", lambda names: [] if set(CORE50) <= set(names) else ["some"])
    assert run("core50", tmp_path) == []
    monkeypatch.setattr(core50, "missing", lambda names: ["some"])  # begun here, so it resumes
    with pytest.raises(pytest.fail.Exception, match="downloads"):
        run("core50", tmp_path)


def test_core50_from_a_zip_file(tmp_path, run, said):
    folder = write_files(tmp_path / "made", [*CORE50, "s1/o1/notes.txt", "__MACOSX/s1/o1/._C_01_01_010.png"])
    archive = pack(tmp_path / "mine.zip", folder, "wrapped/core50/")
    assert run("core50", tmp_path / "root", archive) == []
    assert files(tmp_path / "root/core50_128x128") == sorted(CORE50)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    assert said[0].startswith(
        f"warning: {archive} has the MD5 checksum {md5}, while that of core50_128x128.zip is 745f33"
    )
    archive.rename(tmp_path / "core50_128x128.zip")
    with pytest.raises(
        FrameTableError, match=rf"core50_128x128.zip has the MD5 checksum {md5}, .*Download it: http://bias"
    ):
        run("core50", tmp_path / "other", tmp_path / "core50_128x128.zip")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "names", "frames", "inner"),
    [
        ("core50", CORE50, CORe50Frames, "core50_128x128"),
        ("ilab", ILAB, ILabFrames, "iLab-2M-Light"),
        ("icub", ICUB, ICubFrames, "icub"),
        ("imagenet", IMAGENET, ImageNetFrames, "imagenet"),
    ],
)
def test_a_folder_that_has_the_layout(tmp_path, run, said, name, names, frames, inner):
    source = write_files(tmp_path / "source" / inner, names).parent
    before = files(tmp_path)
    assert run(name, tmp_path / "root", source) == []
    assert files(tmp_path) == before and not (tmp_path / "root").exists()
    assert f"{source / inner} has the layout of {name} (2 classes, " in "\n".join(said)
    assert f"nothing was copied. Use --dataset-root {source} from now on" in "\n".join(said)
    assert run(name, source) == []
    table = read_csv(source, name)
    assert all(path.startswith(f"{inner}/") for path in table.path) and len(table) == len(frames(source))
    assert run(name, source / inner, source / inner) == []  # the same folder twice
    assert read_csv(source / inner, name).content_hash() == frames(source / inner).content_hash()
    assert frames(source).content_hash() == frames(source / inner).content_hash()  # the new file is in nobody's way


def test_tiny_imagenet_is_downloaded_without_its_unlabelled_images(tmp_path, run, said, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = write_tiny_imagenet(tmp_path / "made", ("n00000001", "n00000002"))
    content = pack(tmp_path / "x.zip", folder, "tiny-imagenet-200/").read_bytes()
    root = tmp_path / "root"
    with LocalServer(content) as server:
        published_at(monkeypatch, "tiny_imagenet", f"{server.url}/tiny-imagenet-200.zip")
        with pytest.raises(DownloadError, match="but 90528d7ca1a48142e341f4ef8d21d0de is expected, so it was deleted"):
            run("tiny_imagenet", root)
        published_at(monkeypatch, "tiny_imagenet", f"{server.url}/tiny-imagenet-200.zip", server.md5)
        assert run("tiny_imagenet", root) == []
    kept = {path for path in files(folder) if path.endswith(".JPEG") and not path.startswith("test/")}
    assert set(files(root)) == kept | {
        "val/val_annotations.txt",
        "tiny_imagenet.csv",
        ".download/tiny-imagenet-200.zip",
    }
    assert read_csv(root, "tiny_imagenet").content_hash() == TinyImageNetFrames(folder).content_hash()
    assert "2 classes, 4 training and 2 test images; listed in" in "\n".join(said)
    assert "These are not the data set's numbers; `crumb prepare tiny_imagenet" in "\n".join(said)
    report = check("tiny_imagenet", root)
    assert not report.complete and "2 classes; the data set has 200" in report.lines
    assert "2 of 10000 images in val/images" in report.lines


def test_tiny_imagenet_from_a_zip_file_of_the_simple_layout(tmp_path, run):
    names = image_tree_names({"train": 2, "test": 1}, ("n00000001", "n00000002"), ".jpg")
    archive = pack(tmp_path / "part.zip", write_files(tmp_path / "made", [*names, "classes.txt"]), "tiny_imagenet/")
    assert run("tiny_imagenet", tmp_path / "root", archive) == []
    assert files(tmp_path / "root") == sorted([*names, "tiny_imagenet.csv"])


def test_ilab_and_core50_need_both(tmp_path, run):
    write_files(tmp_path / "core50", CORE50)
    words = (
        r"iLab-2M-Light holds nothing of ilab.*`crumb prepare ilab --dataset-root .*iLab-2M-Light --source DOWNLOADED`"
    )
    with pytest.raises(FrameTableError, match=words):
        run("ilab_core50", tmp_path)
    words = (
        r"takes no --source; prepare its two parts with `crumb prepare ilab .*iLab-2M-Light --source ...` and `crumb"
    )
    with pytest.raises(FrameTableError, match=words):
        run("ilab_core50", tmp_path / "other", tmp_path / "core50" / "s1")


def test_imagenet_is_listed_in_place_and_what_a_killed_process_left_of_the_list_is_removed(tmp_path, run, said):
    write_files(tmp_path, IMAGENET)
    for name in (".imagenet.csv.123.part", "..imagenet.csv.sha256.123.part"):
        (tmp_path / name).write_text("path,cl")
    assert run("imagenet", tmp_path) == [] and "2 classes, 4 training and 2 test images" in said[0]
    assert files(tmp_path) == sorted([*IMAGENET, "imagenet.csv"])
    assert read_csv(tmp_path, "imagenet").content_hash() == ImageNetFrames(tmp_path).content_hash()


def test_imagenet_that_is_not_sorted(tmp_path, run):
    write_files(tmp_path / "root", [*IMAGENET[:4], "val/ILSVRC2012_val_00000001.JPEG"])
    with pytest.raises(FrameTableError, match=r"must lie in one folder per class.*torchvision.datasets.ImageNet\("):
        run("imagenet", tmp_path / "root")
    archive = pack(tmp_path / "ILSVRC2012_img_val.tar.gz", tmp_path / "root" / "val")
    with pytest.raises(
        FrameTableError, match=r"are not unpacked here: torchvision.datasets.ImageNet\(root, split\) does"
    ):
        run("imagenet", tmp_path / "other", archive)


@pytest.mark.parametrize("name", ["toybox", "ilab", "icub", "imagenet"])
def test_errors_say_where_to_get_a_data_set(tmp_path, run, name):
    source = DATA_SETS[name].layout.source
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FrameTableError) as raised:
            run(name, root)
        message = str(raised.value)
        assert f"{root} holds nothing of {name}" in message and source in message
        assert f"`crumb prepare {name} --dataset-root {root} --source DOWNLOADED`" in message
    (tmp_path / "empty").mkdir()
    if name != "imagenet":
        with pytest.raises(FrameTableError, match=f"empty holds nothing of {name}"):
            run(name, tmp_path / "root", tmp_path / "empty")


def test_other_errors(tmp_path, run):
    with pytest.raises(FrameTableError, match="no data set 'core5' to prepare; there are core50, toybox, ilab, icub"):
        run("core5", tmp_path)
    with pytest.raises(FrameTableError, match="no data set 'eth80'"):
        check("eth80", tmp_path)
    with pytest.raises(FrameTableError, match=r"no file or folder .*nowhere; give your download of ilab as --source"):
        run("ilab", tmp_path, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="workers is 0, but must be a whole number of at least 1"):
        run("ilab", tmp_path, workers=0)
    (tmp_path / "x.zip").write_text("<html>")
    with pytest.raises(FrameTableError, match=r"x.zip is no archive"):
        run("ilab", tmp_path / "root", tmp_path / "x.zip")
    archive = pack(tmp_path / "other.zip", write_files(tmp_path / "other", ["a/b.txt"]))
    with pytest.raises(FrameTableError, match=r"there is no folder .*root. ilab is laid out as"):
        run("ilab", tmp_path / "root", archive)


def test_a_full_disk_is_reported_in_one_line(tmp_path, run, monkeypatch):
    write_files(tmp_path, IMAGENET)

    def full(table, file):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(FrameTable, "to_csv", full)
    with pytest.raises(
        FrameTableError, match=r"No space left on device: .*imagenet.csv.*the same command again, which resumes"
    ):
        run("imagenet", tmp_path)


def test_a_source_that_was_unpacked_in_part_is_completed(tmp_path, run, said):
    folder = write_files(tmp_path / "made", CORE50)
    source = tmp_path / "source"
    source.mkdir()
    pack(source / "mine.zip", folder, "core50_128x128/")
    write_files(source / "core50_128x128", [name for name in CORE50 if name.startswith(("s1", "s3"))])
    assert run("core50", tmp_path / "root", source) == []
    assert files(tmp_path / "root/core50_128x128") == sorted(CORE50)
    (source / "mine.zip").unlink()  # now the folder is all there is
    said.clear()
    assert run("core50", tmp_path / "other", source) == []
    assert "so nothing was copied" in said[0] and said[1].startswith("These are not the paper's numbers")


@pytest.mark.parametrize("packed", ["x.tar.gz", "in the root", "folder of archives"])
def test_data_sets_from_their_archives(tmp_path, run, said, packed, monkeypatch):
    monkeypatch.setattr(_prepare_sources, "_LARGE", 1000)
    for name, names, frames in (("ilab", ILAB, ILabFrames), ("icub", ICUB, ICubFrames)):
        made = write_files(tmp_path / "made" / name, [*names, "README", "part1/book/book1/MIX/day2/left/boxes.xml"])
        root, source = tmp_path / "root" / name, tmp_path / "source" / name
        for folder in (root, source):
            folder.mkdir(parents=True)
        if packed == "folder of archives" and name == "icub":
            pack(source / "part1.zip", made / "part1", "part1/")
            pack(source / "part3.tar.gz", made / "part3", "icubworld/part3/")
        else:
            archive = pack((root if packed == "in the root" else source) / "all.tar.gz", made, "outer/folder/")
        given = {"x.tar.gz": archive, "in the root": None, "folder of archives": source}[packed]
        for _ in range(2):
            assert run(name, root, given) == []
        kept = [] if given else ["all.tar.gz"]
        assert files(root) == sorted([*names, f"{name}.csv", *kept])
        assert read_csv(root, name).content_hash() == frames(root).content_hash() == frames(made).content_hash()
        (root / names[0]).unlink()
        said.clear()
        assert run(name, root, given) == [] and any(line.endswith(": 1 file unpacked") for line in said)
        assert said[0].startswith("reading the file list of ") and said[0].endswith(" kB)")


def test_ilab_and_core50_below_one_root(tmp_path, run, monkeypatch):
    both = tmp_path / "ilab_core50"
    write_files(both / "iLab-2M-Light", ILAB)
    write_files(both / "core50", CORE50)
    monkeypatch.setattr(core50, "missing", lambda names: [])
    assert run("ilab_core50", both) == [] and run("ilab_core50", tmp_path) == []
    assert read_csv(both, "ilab_core50").content_hash() == ILabCORe50Frames(both).content_hash()
    assert read_csv(tmp_path, "ilab_core50").path[0].startswith("ilab_core50/")
    assert (both / "iLab-2M-Light/ilab.csv").is_file() and (both / "core50/core50.csv").is_file()
    images = both / "iLab-2M-Light" / "train_img"
    assert run("ilab", images) == [] and (images / "ilab.csv").exists()
    monkeypatch.chdir(images)
    assert len(ILabFrames(".")) == len(ILabFrames(images))
