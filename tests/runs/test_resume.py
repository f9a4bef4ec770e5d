"""The same command resumes an interrupted run, which ends with the same bits."""

import json
from types import SimpleNamespace

import pytest
import yaml
from learned import tensors_of

from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.system.tensor_file import checksum
from crumb_avalanche.training.stream_strategy import StreamStrategy

FILES = ("accuracy_matrix.csv", "predictions.npz")


class PowerCut(BaseException):
    """Stands for the sudden end of the process."""


@pytest.fixture
def cut_off(crumb, monkeypatch):
    """Give a command whose training ends at the n-th step."""

    def cut(steps, *arguments):
        done, step = [], StreamStrategy.optimizer_step

        def counted(self):
            done.append(1)
            if len(done) > steps:
                raise PowerCut
            step(self)

        with monkeypatch.context() as patch, pytest.raises(PowerCut):
            patch.setattr(StreamStrategy, "optimizer_step", counted)
            crumb(*arguments)

    return cut


def bits(folder):
    learned = {name: checksum(name, tensor) for name, tensor in tensors_of(folder).items()}
    assert learned
    return [learned, *((folder / name).read_bytes() for name in FILES)]


@pytest.fixture
def undisturbed(crumb, tiny, tmp_path):
    code, _, err = crumb(*tiny, "--mem-size", "8", "--output", tmp_path / "undisturbed")
    assert code == 0, err
    return tmp_path / "undisturbed"


@pytest.mark.filterwarnings("error:class .* returns")  # an experience that is resumed is not another one
@pytest.mark.parametrize("cuts", [(3,), (17, 4, 1)])
def test_the_same_bits_after_power_cuts(crumb, tiny, tmp_path, undisturbed, cut_off, cuts):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path / "cut", "--checkpoint-every", "2")
    for steps in cuts:
        cut_off(steps, *arguments)
        assert not (tmp_path / "cut" / "result.json").exists()
    code, _, err = crumb(*arguments)
    assert code == 0, err
    assert bits(tmp_path / "cut") == bits(undisturbed)
    assert not (tmp_path / "cut" / "resume").exists()  # nothing to go on from is left
    assert not (tmp_path / "cut" / "interrupted").exists()


def test_seconds_add_up_over_processes(crumb, tiny, tmp_path, cut_off, monkeypatch):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path / "cut")
    clock = SimpleNamespace(perf_counter=lambda: clock.now)
    save = Resume.save

    def save_after_a_minute(self, position):
        clock.now += 60
        save(self, position)

    def new_process(now):
        """A clock has a zero of its own in each."""
        clock.now = now
        monkeypatch.setattr("crumb_avalanche.runs.run.time", clock)
        monkeypatch.setattr("crumb_avalanche.runs.resume.time", clock)
        monkeypatch.setattr(Resume, "save", save_after_a_minute)

    new_process(1000.0)
    cut_off(12, *arguments)  # in the second experience
    new_process(5.0)
    assert crumb(*arguments)[0] == 0
    assert json.loads((tmp_path / "cut" / "result.json").read_text())["seconds"] == 120


def test_finished_experiences_are_not_repeated_and_metrics_restored(crumb, tiny, tmp_path, undisturbed, cut_off):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path / "cut")
    cut_off(12, *arguments)  # 2 epochs of 5 batches, then two steps of the second experience
    code, out, err = crumb(*arguments)
    assert code == 0, err
    assert "resuming: 1 of 2 experiences are finished\n" in out
    assert "after experience 1/2" not in out and "after experience 2/2" in out
    assert bits(tmp_path / "cut") == bits(undisturbed)
    found, whole = ((folder / "metrics.csv").read_text().splitlines() for folder in (tmp_path / "cut", undisturbed))
    assert len(found) == len(whole) and any(line.startswith("Ledger") for line in whole)
    assert [line for line in found if line[:6] != "Ledger"] == [line for line in whole if line[:6] != "Ledger"]


def test_the_ledger_counts_cached_maps_of_earlier_processes(crumb, tiny, tmp_path, cut_off):
    def arguments(name):
        where = ("--feature-cache", tmp_path / name / "cache", "--output", tmp_path / name / "run")
        return *tiny, "--mem-size", "8", "--checkpoint-every", "1", *where

    assert crumb(*arguments("undisturbed"))[0] == 0
    cut_off(12, *arguments("cut"))  # in the second experience
    assert crumb(*arguments("cut"))[0] == 0
    whole, cut = (json.loads((tmp_path / name / "run" / "ledger.json").read_text()) for name in ("undisturbed", "cut"))
    assert cut["feature_cache_images_filled"] == whole["feature_cache_images_filled"] > 0
    assert cut["feature_cache_seconds"] > 0


def test_a_tuned_rate_is_not_tuned_again(crumb, tiny, tmp_path, monkeypatch):
    from crumb_avalanche.runs import run, session

    arguments = (*tiny, "--family", "fair", "--mem-size", "8")
    assert crumb(*arguments, "--output", tmp_path / "undisturbed")[0] == 0
    whole, trained = json.loads((tmp_path / "undisturbed" / "result.json").read_text()), StreamStrategy.train
    learn = run.learn

    def only_the_first(self, experience, *args, **kwargs):
        if experience.current_experience == 1:
            raise PowerCut
        return trained(self, experience, *args, **kwargs)

    def learn_the_first(*arguments):  # tuning has a stream of its own, which is not cut
        monkeypatch.setattr(StreamStrategy, "train", only_the_first)
        learn(*arguments)

    monkeypatch.setattr(run, "learn", learn_the_first)
    with pytest.raises(PowerCut):
        crumb(*arguments, "--output", tmp_path / "cut")
    monkeypatch.undo()
    monkeypatch.setattr(session, "tune", lambda *args, **kwargs: pytest.fail("tuned again"))
    assert crumb(*arguments, "--output", tmp_path / "cut")[0] == 0
    again = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert again["learning_rate_trials"] == whole["learning_rate_trials"]
    assert bits(tmp_path / "cut") == bits(tmp_path / "undisturbed")


def test_other_settings_are_refused_and_overwrite_starts_over(crumb, tiny, tmp_path, cut_off):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path / "cut")
    cut_off(12, *arguments)
    code, _, err = crumb(*arguments, "--learning-rate", "0.002")
    assert code == 1
    assert "holds checkpoints made with learning_rate=0.001, not 0.002; resume with the same settings" in err
    assert yaml.safe_load((tmp_path / "cut" / "config.yaml").read_text())["learning_rate"] == 0.001
    code, out, _ = crumb(*arguments, "--learning-rate", "0.002", "--overwrite", "true")
    assert code == 0 and "after experience 1/2" in out


def test_a_damaged_checkpoint_costs_only_the_time_since_the_one_before(crumb, tiny, tmp_path, cut_off, undisturbed):
    arguments = (*tiny, "--mem-size", "8", "--output", tmp_path / "cut", "--checkpoint-every", "1")
    cut_off(10, *arguments)
    newest = max((tmp_path / "cut" / "resume").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        assert crumb(*arguments)[0] == 0
    assert bits(tmp_path / "cut") == bits(undisturbed)
