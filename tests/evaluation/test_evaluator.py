import io
import re

import pytest
from avalanche.logging import InteractiveLogger, TensorboardLogger, TextLogger
from avalanche.training.plugins import EvaluationPlugin
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from avalanche_agcn.evaluation import f1_metrics, find_nested, multilabel_evaluator
from avalanche_agcn.evaluation.progress import ProgressLogger

TEST = "eval_phase/test_stream"


def test_default_evaluator_logs_progress_and_has_no_accuracy():
    evaluator = multilabel_evaluator()
    assert isinstance(evaluator, EvaluationPlugin)
    assert [type(logger) for logger in evaluator.loggers] == [ProgressLogger]
    assert not any("Acc" in str(metric) for metric in evaluator.metrics)


def test_default_evaluator_emits_loss_map_f1_and_forgetting(benchmark, make_strategy):
    strategy = make_strategy()
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    strategy.train(benchmark.train_stream[1])
    results = strategy.eval(benchmark.test_stream[:2])
    for name in ("Loss_Stream", "mAP_Last", "CF1_Last", "OF1_NestedMean", "mAP_Forgetting", "mAP_Nested"):
        assert any(key.startswith(f"{name}/{TEST}") for key in results), name
    assert "mAP_Epoch/train_phase/train_stream" in results
    assert results[f"mAP_Last/{TEST}"] == find_nested(strategy).history["test"].matrix("mAP")[1][1]


def test_further_metrics_and_loggers_are_taken(benchmark, make_strategy):
    file = io.StringIO()
    strategy = make_strategy(f1_metrics(stream=True, top_k=3), loggers=[TextLogger(file)])
    strategy.eval(benchmark.test_stream)
    assert f"CF1_top3_Stream/{TEST} = 0." in file.getvalue()


def test_threshold_reaches_the_nested_scores(benchmark, make_strategy):
    rows = []
    for threshold in (0.0, 100.0):
        strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[], threshold=threshold))
        strategy.eval(benchmark.test_stream)
        rows.append(find_nested(strategy).history["test"].matrix("OF1")[2])
    assert rows[0][2] > 0
    assert rows[1] == [0.0, 0.0, 0.0]


def test_part_of_a_stream_may_be_evaluated_unless_asked_otherwise():
    assert multilabel_evaluator(loggers=[]).strict_checks is False
    assert multilabel_evaluator(loggers=[], strict_checks=True).strict_checks is True


@pytest.mark.parametrize("make_logger", [TextLogger, lambda file: InteractiveLogger()])
def test_avalanches_loggers_print_readable_lines(benchmark, make_strategy, monkeypatch, make_logger):
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    evaluator = multilabel_evaluator(loggers=[make_logger(file)], per_class=True, figures=True)
    strategy = make_strategy(evaluator=evaluator)
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    text = file.getvalue()
    row = find_nested(strategy).history["test"].matrix("mAP")[0]
    assert f"\tmAP_Nested/{TEST}/Exp000 = {row[0]:.4f}\n" in text
    assert f"\tLearningCurve/{TEST} = score (%) after each experience: mAP {100 * row[0]:.1f}; CF1" in text
    assert f"\tAP_Nested/{TEST}/" in text
    assert "object at 0x" not in text
    assert "tensor(" not in text
    assert not re.search(r"<\w+ ", text)


def test_tensorboard_gets_scalars_and_figures(tmp_path, benchmark, make_strategy):
    logger = TensorboardLogger(tmp_path)
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[logger], figures=True))
    for t in range(2):
        strategy.train(benchmark.train_stream[t])
        strategy.eval(benchmark.test_stream[: t + 1])
    logger.writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    matrix = find_nested(strategy).history["test"].matrix("mAP")
    logged = [event.value for event in events.Scalars(f"mAP_Nested/{TEST}/Exp000")]
    assert logged == pytest.approx([row[0] for row in matrix])
    assert f"OF1_RelativeForgetting/{TEST}" in events.Tags()["scalars"]
    image = events.Images(f"LearningCurve/{TEST}")[-1]
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert (image.width, image.height) > (300, 200)
