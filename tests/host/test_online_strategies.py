"""Facts of Avalanche's ``tests/training/test_online_strategies.py`` for our strategies and every selection rule."""

import pytest
from avalanche.benchmarks.scenarios.online import OnlineCLScenario
from host_benchmarks import N_CLASSES, PER_CLASS, Trace, host_benchmark
from host_strategies import OURS, our_strategy, registered

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = N_CLASSES * PER_CLASS


@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize("name", [*OURS, "er", "image_replay", "rda", "ewc"])
def test_online_scenario(name, boundaries):
    """test_naive: with boundaries one sub-experience a call, without them the whole stream in one."""
    trace = Trace()
    benchmark = host_benchmark("nc")
    online = OnlineCLScenario(benchmark.streams.values(), experience_size=10, access_task_boundaries=boundaries)
    strategy = (our_strategy if name in OURS else registered)(name, plugins=[trace], train_epochs=1)
    for part in online.train_online_stream if boundaries else [online.train_online_stream]:
        strategy.train(part, num_workers=0)
        strategy.eval(online.original_test_stream[:])
    assert strategy.clock.train_exp_counter == 6  # three experiences of 10 and 6 images
    assert len(trace.labels) == 6 and sum(map(len, trace.labels)) >= IMAGES
