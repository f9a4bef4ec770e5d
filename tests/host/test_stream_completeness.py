"""Facts of Avalanche's ``tests/training/test_stream_completeness.py`` for our strategies; ids name the host's test."""

import pytest
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from host_benchmarks import host_benchmark
from host_strategies import OURS, our_strategy, registered

pytestmark = pytest.mark.filterwarnings("ignore")
ALL = [*OURS, "er", "rda"]


def trained(name, strict, **arguments):
    """A strategy after all experiences, evaluated on the whole stream after each, and its benchmark."""
    benchmark = host_benchmark("nc")
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[], strict_checks=strict)
    build = our_strategy if name in OURS else registered
    strategy = build(name, evaluator=evaluator, train_epochs=1, **arguments)
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[benchmark.test_stream])
        strategy.eval(benchmark.test_stream)
    return strategy, benchmark


@pytest.mark.parametrize("name", ALL)
def test_a_part_of_the_stream_is_an_error(name):
    """test_raise_error."""
    strategy, benchmark = trained(name, True)
    with pytest.raises(ValueError, match="stream"):
        strategy.eval(benchmark.test_stream[:2])


@pytest.mark.parametrize("name", ALL)
def test_a_part_of_the_stream_is_evaluated_without_checks(name):
    """test_raise_warning, whose warning Avalanche 0.6.0 no longer gives."""
    strategy, benchmark = trained(name, False)
    metrics = strategy.evaluator.get_all_metrics()
    strategy.eval(benchmark.test_stream[:2])
    assert len(metrics["Top1_Acc_Stream/eval_phase/test_stream/Task000"][1]) == 4


@pytest.mark.parametrize("name", ALL)
def test_evaluation_within_training_is_complete(name):
    """test_no_errors."""
    strategy, benchmark = trained(name, True, eval_every=0)
    accuracy = strategy.evaluator.get_all_metrics()["Top1_Acc_Stream/eval_phase/test_stream/Task000"][1]
    assert len(accuracy) == 3 * len(benchmark.train_stream)  # before and after training, and by hand
