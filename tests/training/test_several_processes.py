"""A strategy in one of several processes of Avalanche's ``DistributedHelper`` stops before its first step."""

import json
import socket
from pathlib import Path

import pytest
import small_models
from avalanche.distributed import DistributedHelper
from forked import start_script
from small_crumb import train

from crumb_avalanche.training.storage_policies import CodeBuffer

SCRIPT = """
import json, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
sys.path[:0] = [sys.argv[1]]
import torch
from avalanche.distributed import DistributedHelper
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from small_crumb import train
from small_models import make_model, make_stream
from crumb_avalanche import CodeBuffer, CRUMBPlugin

DistributedHelper.init_distributed(0, "gloo", use_cuda=False)
said = []
for host in ("CRUMBStrategy", "Naive"):
    model, stream = make_model(), make_stream()
    before = model.plastic_layers.head.weight.clone()
    try:
        if host == "Naive":
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            plugins, quiet = [CRUMBPlugin(CodeBuffer(7))], EvaluationPlugin(loggers=[])
            Naive(model=model, optimizer=optimizer, plugins=plugins, evaluator=quiet).train(stream.train_stream)
        else:
            train(model, stream, CodeBuffer(7))
    except RuntimeError as error:
        said.append([str(error), bool((model.plastic_layers.head.weight == before).all())])
Path(sys.argv[2], os.environ["RANK"]).write_text(json.dumps(said))
"""


@pytest.mark.slow
def test_two_processes_are_refused(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    helpers = Path(small_models.__file__).parent
    ranks = [
        start_script(tmp_path / "script.py", helpers, tmp_path, **place, RANK=rank, LOCAL_RANK=rank) for rank in "01"
    ]
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    words = "this is one of 2 processes of torch.distributed; memories, class statistics and steps on them are not"
    for rank in "01":
        said = json.loads((tmp_path / rank).read_text())
        assert [message.startswith(words) and unchanged for message, unchanged in said] == [True, True]


def test_one_of_two_is_refused(model, make_stream, monkeypatch):
    monkeypatch.setattr(type(DistributedHelper), "world_size", property(lambda helper: 2))
    with pytest.raises(RuntimeError, match=r"one of 2 processes.*train in one process, without torchrun"):
        train(model, make_stream(), CodeBuffer(7))
