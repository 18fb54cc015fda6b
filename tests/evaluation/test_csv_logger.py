import csv
import os

from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.evaluation import find_nested, mean_average_precision_metrics, multilabel_evaluator
from avalanche_agcn.evaluation.csv_logger import MultiLabelCSVLogger

TEST = "eval_phase/test_stream"


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(strategy, benchmark, experiences=(0, 1)):
    for t in experiences:
        strategy.train(benchmark.train_stream[t])
        strategy.eval(benchmark.test_stream[: t + 1])


def test_csv_has_our_metrics_as_columns(tmp_path, benchmark, make_strategy):
    evaluator = multilabel_evaluator(
        loggers=[MultiLabelCSVLogger(tmp_path / "logs")], per_class=True, class_names=list("abcdef")
    )
    strategy = make_strategy(evaluator=evaluator, train_epochs=2)
    run(strategy, benchmark)
    matrix, values = find_nested(strategy).history["test"].matrix("CF1"), evaluator.get_last_metrics()

    rows = read(tmp_path / "logs" / "eval_results.csv")
    assert [(row["training_exp"], row["stream"], row["eval_exp"]) for row in rows] == [
        ("0", "test", "0"),
        ("0", "test", ""),
        ("1", "test", "0"),
        ("1", "test", "1"),
        ("1", "test", ""),
    ]
    assert [float(rows[i]["CF1_Nested"]) for i in (0, 2, 3)] == [matrix[0][0], *matrix[1]]
    assert float(rows[-1]["mAP_Forgetting"]) == values[f"mAP_Forgetting/{TEST}"]
    assert float(rows[-1]["AP_Nested/d"]) == values[f"AP_Nested/{TEST}"]["d"]
    assert rows[1]["AP_Nested/d"] == ""  # class d came with the second experience

    rows = read(tmp_path / "logs" / "training_results.csv")
    assert [(row["training_exp"], row["epoch"]) for row in rows] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert float(rows[-1]["mAP_Epoch"]) == values["mAP_Epoch/train_phase/train_stream"]
    assert "accuracy" not in ",".join(rows[0])


def test_csv_has_the_classes_of_an_epoch_as_columns(tmp_path, benchmark, make_strategy):
    metrics = mean_average_precision_metrics(epoch=True, per_class=True, class_names=list("abcdef"))
    strategy = make_strategy(evaluator=EvaluationPlugin(metrics, loggers=[MultiLabelCSVLogger(tmp_path)]))
    strategy.train(benchmark.train_stream[0])
    values = strategy.evaluator.get_last_metrics()["AP_Epoch/train_phase/train_stream"]
    (row,) = read(tmp_path / "training_results.csv")
    assert {name: float(row[f"AP_Epoch/{name}"]) for name in "ab"} == {name: values[name] for name in "ab"}
    assert "AP_Epoch" not in row


def test_csv_can_go_on_with_the_files_of_a_run(tmp_path, benchmark, make_strategy):
    for append in (False, True, False):
        logger = MultiLabelCSVLogger(tmp_path, append=append)
        run(make_strategy(evaluator=multilabel_evaluator(loggers=[logger])), benchmark, experiences=[0])
        assert len(read(tmp_path / "training_results.csv")) == (2 if append else 1)
        assert len(read(tmp_path / "eval_results.csv")) == (4 if append else 2)
    assert sorted(os.listdir(tmp_path)) == ["eval_results.csv", "training_results.csv"]


def test_csv_of_an_evaluation_without_training_has_no_training_experience(tmp_path, benchmark, make_strategy):
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[MultiLabelCSVLogger(tmp_path)]))
    strategy.eval(benchmark.test_stream)
    assert {row["training_exp"] for row in read(tmp_path / "eval_results.csv")} == {""}
