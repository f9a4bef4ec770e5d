"""Maps that were removed, truncated or damaged are computed again or an error, and never used silently."""

import errno
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from stored_maps import ROWS, overwrite, stacked, store_of
from torch.utils.data import DataLoader

from crumb_avalanche.models.map_store import FeatureCacheError


@pytest.mark.parametrize(("left", "filled"), [(None, 6), (0, 6), (80 + 5 * 512, 3)])
def test_maps_that_were_removed_or_truncated_are_computed_again(tmp_path, model, pixels, images, left, filled):
    store = store_of(tmp_path, model)
    store.dataset(images, ROWS, [0] * 6)
    if left is None:
        store.path.unlink()
    else:
        store.path.write_bytes(store.path.read_bytes()[:left])
    again = store_of(tmp_path, model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = again.dataset(images, ROWS, [0] * 6)
    assert again.filled == filled and bool(left) == any("3 of 6 maps" in str(one.message) for one in said)
    torch.testing.assert_close(stacked(found), model.extract(pixels))


def flip(path, place, bit=0):
    """Flip one bit of a file."""
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)


@pytest.mark.parametrize("entry", [False, True])
def test_damaged_maps_are_computed_again_with_a_warning(tmp_path, model, images, entry):
    whole = store_of(tmp_path, model)
    wanted = stacked(whole.dataset(images, ROWS, [0] * 6))
    for row in (4, 7):
        flip(whole.path, 8 * row if entry else 80 + 512 * row)
    store = store_of(tmp_path, model)
    with pytest.warns(UserWarning, match=r"2 of 6 maps in .*\.maps are damaged; they are computed again"):
        assert torch.equal(stacked(store.dataset(images, ROWS, [0] * 6)), wanted)
    assert store.damaged == store.filled == 2
    again = store_of(tmp_path, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
    assert again.filled == 0


def test_no_flipped_bit_is_used_silently(tmp_path, model, images):
    wanted = stacked(store_of(tmp_path / "whole", model).dataset(images, ROWS, [0] * 6))
    draws = random.Random(0)
    found = 0
    for number in range(200):
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
        (path,) = (tmp_path / "flipped").iterdir()
        place = draws.randrange(80) if number % 2 else draws.randrange(80, path.stat().st_size)
        flip(path, place, draws.randrange(8))
        filled = (place // 8 if number % 2 else (place - 80) // 512) in ROWS
        found += filled
        with store_of(tmp_path / "flipped", model) as store, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of files that garbage of other tests leaves open
            assert torch.equal(stacked(store.dataset(images, ROWS, [0] * 6)), wanted), place
        assert (len(caught), store.damaged) == (filled, filled), place
        shutil.rmtree(tmp_path / "flipped")
    assert 80 < found < 160


def test_a_file_that_was_truncated_in_use_is_an_error(tmp_path, model, images):
    store = store_of(tmp_path, model)
    maps = store.dataset(images, ROWS, [0] * 6)
    store.path.write_bytes(b"")
    with pytest.raises(FeatureCacheError, match="was truncated while in use"):
        maps[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_that_is_damaged_in_use_is_an_error_and_computed_again_by_the_next_process(
    tmp_path, model, images, workers
):
    with store_of(tmp_path, model) as store:
        maps = store.dataset(images, ROWS, [0] * 6)
        wanted = stacked(maps)
        overwrite(store, 9, bytes(store.bytes_per_map))  # ROWS[2]
        overwrite(store, 9, bytes(8), entry=True)  # checked against what this process verified
        assert torch.equal(maps[1][0], wanted[1])
        with pytest.raises(FeatureCacheError, match=r"damaged while in use.*map 9.*start the same command again"):
            list(DataLoader(maps, batch_size=2, num_workers=workers))
        with pytest.raises(FeatureCacheError, match="damaged while in use"):
            pickle.loads(pickle.dumps(maps))[2]
    assert torch.equal(stacked(store_of(tmp_path, model).dataset(images, ROWS, [0] * 6)), wanted)


@pytest.mark.parametrize("entries", [False, True])
def test_zeroed_pages_change_nothing(tmp_path, model, images, entries):
    with store_of(tmp_path, model) as store:
        wanted = stacked(store.dataset(images, ROWS, [0] * 6))
    content = store.path.read_bytes()
    store.path.write_bytes(bytes(80) + content[80:] if entries else content[:80] + bytes(len(content) - 80))
    with store_of(tmp_path, model) as again, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert torch.equal(stacked(again.dataset(images, ROWS, [0] * 6)), wanted)
    # Entries of zeros say that maps are missing, not that they are damaged.
    assert again.filled == 6 and again.damaged == (0 if entries else 6)


FILL_A_SMALL_DISK = """
mount -t tmpfs -o size=128k none "$1" || exit 77
[ "$2" = 0 ] || head -c 1M /dev/zero > "$1/other" 2> /dev/null
exec "$3" -c '
import shutil, sys
from types import SimpleNamespace
import numpy, torch
from small_models import make_model
from crumb_avalanche.models.map_store import FeatureCacheError, MapStore
shutil.disk_usage = lambda folder: SimpleNamespace(free=10**12)  # another process takes the room afterwards
try:
    with MapStore(sys.argv[1], make_model(), 4000, "toy", progress=False) as store:
        store.dataset(torch.utils.data.TensorDataset(torch.zeros(4000, 3, 16, 16)), numpy.arange(4000), [0] * 4000)
except FeatureCacheError as error:
    print(store.filled, error)
' "$1"
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs Linux and unshare")
@pytest.mark.parametrize("full", [0, 1])
def test_a_disk_that_fills_up_meanwhile_is_an_error(tmp_path, full):
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), os.environ.get("PYTHONPATH", "")])
    command = ["unshare", "-rm", "sh", "-c", FILL_A_SMALL_DISK, "sh", str(tmp_path), str(full), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    if done.returncode in (1, 77) and "unshare" in done.stderr + "mount" * (done.returncode == 77):
        pytest.skip("this system refuses private mounts")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cannot be written \(No space left on device\); make room", done.stdout)


@pytest.mark.parametrize("room", [0, 300, 1500])  # bytes; a map takes 512
def test_a_write_that_fails_is_an_error_and_leaves_a_missing_map(tmp_path, model, images, monkeypatch, room):
    store = store_of(tmp_path, model)

    class Full:
        """A file on a disk with some room, which takes a part of the last write."""

        left = room

        def seek(self, place):
            return file.seek(place)

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = file.write(data[: self.left])
            self.left -= written
            return written

    file, full = store._file, Full()
    full.fileno = file.fileno
    monkeypatch.setattr(store, "_file", full)
    with pytest.raises(FeatureCacheError, match=r"cannot be written \(No space left on device\); make room"):
        store.dataset(images, ROWS, [0] * 6)
    assert store.present().sum() == room // store.bytes_per_map
