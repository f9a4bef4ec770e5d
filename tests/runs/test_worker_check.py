"""What a worker compares with the call that sent it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from crumb_avalanche.runs.worker_check import Call, EngineError, make_private


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Call.begin(tmp_path / "slurm")


def test_a_worker_answers(call):
    call.check_in()
    assert call.answers() == [""]
    call.raise_refusals()


def test_a_worker_of_another_version(call):
    newer = replace(call, versions={**call.versions, "crumb-avalanche": "99.0"})
    with pytest.raises(EngineError, match=r"has crumb-avalanche .*, but this computer"):
        newer.check_in()
    with pytest.raises(
        EngineError, match=r"99\.0: give all nodes the same environment"
    ):
        call.raise_refusals()


def test_a_worker_works_where_the_command_was_given(call, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    call.check_in()
    assert Path.cwd() == tmp_path


def test_a_worker_that_does_not_see_where(call, tmp_path):
    elsewhere = replace(call, working_folder=tmp_path / "none")
    with pytest.raises(EngineError, match=r"none, where the command was given: give"):
        elsewhere.check_in()


def test_a_worker_that_sees_no_folder(call):
    shutil.rmtree(call.folder)
    with pytest.raises(EngineError, match=r"does not see .*slurm: choose an --output"):
        call.check_in()


def test_calls_do_not_answer_each_other(call, tmp_path):
    call.check_in()
    assert Call.begin(tmp_path / "slurm").answers() == []


def test_a_folder_that_others_write_to(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(EngineError, match="take the right away with chmod go-w"):
        make_private(tmp_path)


def test_a_folder_of_another_user(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(EngineError, match="belongs to another user"):
        make_private(tmp_path)
