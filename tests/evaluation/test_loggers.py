"""CSV files, Weights & Biases, and progress on a terminal or in a file."""

import csv
import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest
import torch
from avalanche.evaluation.metrics import WeightCheckpoint

from avalanche_agcn.evaluation import MultiLabelCSVLogger, MultiLabelWandBLogger, ProgressBar, ProgressLogger
from avalanche_agcn.evaluation.evaluator import multilabel_evaluator
from avalanche_agcn.evaluation.plugins import find_nested, mean_average_precision_metrics

TEST = "eval_phase/test_stream"


@pytest.fixture
def run(make_strategy, learn):
    """A function that trains and evaluates with a logger."""

    def run(logger, *metrics, n_experiences=1, options=None, **settings):
        evaluator = multilabel_evaluator(*metrics, loggers=[logger], **(options or {}))
        strategy = make_strategy(evaluator=evaluator, **settings)
        learn(strategy, range(n_experiences))
        return strategy

    return run


# CSV files


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_csv_has_our_metrics_as_columns(tmp_path, run):
    logger = MultiLabelCSVLogger(tmp_path / "logs")
    names = {"per_class": True, "class_names": list("abcdef")}
    metrics = mean_average_precision_metrics(minibatch=True, epoch=True, **names)
    options = {"options": {"train_map": False, **names}, "n_experiences": 2, "train_epochs": 2}
    strategy = run(logger, metrics, **options)
    matrix = find_nested(strategy).history["test"]["CF1"]
    values = strategy.evaluator.get_last_metrics()

    rows = read(tmp_path / "logs" / "eval_results.csv")
    assert {row["stream"] for row in rows} == {"test"}
    positions = [(row["training_exp"], row["eval_exp"]) for row in rows]
    assert positions == [("0", "0"), ("0", ""), ("1", "0"), ("1", "1"), ("1", "")]
    assert [float(rows[i]["CF1_Nested"]) for i in (0, 2, 3)] == [matrix[0][0], *matrix[1]]
    assert float(rows[-1]["mAP_Forgetting"]) == values[f"mAP_Forgetting/{TEST}"]
    assert float(rows[-1]["AP_Nested/d"]) == values[f"AP_Nested/{TEST}"]["d"]
    assert rows[1]["AP_Nested/d"] == ""  # class d came with the second experience

    rows = read(tmp_path / "logs" / "training_results.csv")
    assert [(row["training_exp"], row["epoch"]) for row in rows] == [(t, e) for t in "01" for e in "01"]
    assert float(rows[-1]["mAP_Epoch"]) == values["mAP_Epoch/train_phase/train_stream"]
    by_class = values["AP_Epoch/train_phase/train_stream"]
    assert [float(rows[-1][f"AP_Epoch/{name}"]) for name in "cd"] == [by_class[name] for name in "cd"]
    assert not {"accuracy", "AP_Epoch", "mAP_MB", "AP_MB/c"} & set(rows[0])  # nothing of a single batch


def test_csv_can_be_continued_and_needs_no_training(tmp_path, benchmark, make_strategy, run):
    for append in (False, True, False):
        run(MultiLabelCSVLogger(tmp_path, append=append))
        assert len(read(tmp_path / "training_results.csv")) == (2 if append else 1)
        assert len(read(tmp_path / "eval_results.csv")) == (4 if append else 2)
    assert sorted(os.listdir(tmp_path)) == ["eval_results.csv", "training_results.csv"]
    make_strategy(loggers=[MultiLabelCSVLogger(tmp_path)]).eval(benchmark.test_stream)
    assert {row["training_exp"] for row in read(tmp_path / "eval_results.csv")} == {""}


# Weights & Biases


@pytest.fixture
def make_wandb_logger(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    for folder in ("DATA", "CACHE"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / folder))
    made = []

    def make(params=None, **settings):
        params = {"mode": "offline", "settings": {"console": "off"}, **(params or {})}
        made.append(MultiLabelWandBLogger(dir=str(tmp_path), params=params, save_code=False, **settings))
        return made[-1]

    yield make
    for logger in made:
        logger.wandb.finish()


def test_wandb_gets_numbers_and_plots_and_nothing_else(make_wandb_logger, tmp_path, run):
    logger = make_wandb_logger({"id": "mine"})
    strategy = run(logger, options={"plots": True})
    logger.log_single_metric("text", "neither number nor plot", logger.step)
    logger.wandb.log({}, step=logger.step + 1, commit=True)  # a step is written when the next one begins
    summary, score = logger.wandb.run.summary, find_nested(strategy).history["test"]["mAP"][0][0]
    for name in (f"mAP_Last/{TEST}", f"mAP_Nested/{TEST}/Exp000"):
        assert summary[name] == pytest.approx(score)
    assert summary[f"LearningCurve/{TEST}"]["_type"] == "image-file"
    assert "text" not in dict(summary)
    assert logger.wandb.run.id == "mine"
    (picture,) = tmp_path.glob("wandb/offline-run-*/files/media/images/**/*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("log_artifacts", [True, False])
def test_wandb_gets_checkpoints_on_request(
    make_wandb_logger, tmp_path, benchmark, make_strategy, monkeypatch, log_artifacts
):
    logger = make_wandb_logger(log_artifacts=log_artifacts, path=tmp_path / "checkpoints")
    # wandb writes its own file in another process, at a time of its choice: look at what it is given instead.
    logged = []
    monkeypatch.setattr(logger.wandb.run, "log_artifact", logged.append)
    strategy = make_strategy(WeightCheckpoint(), loggers=[logger])
    strategy.train(benchmark.train_stream[0])
    names = {name for artifact in logged for name in artifact.manifest.entries}  # Avalanche logs them twice
    assert names == ({"Models/Model_0.pth"} if log_artifacts else set())
    files = list(tmp_path.glob("checkpoints/*"))
    assert [file.name for file in files] == ["Model_0.pth"] * log_artifacts
    for file in files:
        saved = torch.load(file, weights_only=False).state_dict()
        assert all(torch.equal(saved[name], value) for name, value in strategy.model.state_dict().items())


# Progress


def run_on_terminal(run, columns=120, **settings):
    """Return the text that a terminal receives."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with os.fdopen(writer, "w") as terminal:
        run(ProgressLogger(terminal), **settings)
        terminal.flush()
        os.set_blocking(reader, False)
        with os.fdopen(reader, "rb") as file:
            return file.read().decode()


@pytest.fixture
def n_batches(benchmark):
    """Batches of training and of evaluation, in the first experience."""
    streams = {"train": benchmark.train_stream, "eval": benchmark.test_stream}
    return {phase: -(-len(stream[0].dataset) // 7) for phase, stream in streams.items()}


@pytest.mark.parametrize("columns", [120, 0])  # some terminals do not report their width
def test_terminal_shows_bars_with_loss_and_speed(run, n_batches, columns):
    text = run_on_terminal(run, columns)
    for phase, n in n_batches.items():
        pattern = rf"\r{phase} exp 1: 100%\|█+\| {n}/{n} .*?loss \d\.\d{{4}}, \d+\.\d images/s"
        assert re.search(pattern, text), phase
    assert re.search(r"\tmAP of test stream = Nested 0\.\d{4}, Last 0\.\d{4}, ", text)


def statuses(file, phase):
    """Numbers of finished batches and last text of each bar in a file."""
    lines = re.findall(rf"{phase} exp 1: [^\r\n]*", file.getvalue())
    return [int(re.search(r"(\d+)/\d+ \[", line)[1]) for line in lines], lines[-1]


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_file_gets_a_status_as_often_as_asked_and_at_the_end(run, n_batches, seconds):
    file = io.StringIO()
    strategy = run(ProgressBar(file, seconds=seconds))
    results = strategy.evaluator.get_last_metrics()
    for phase, n in n_batches.items():
        done, last = statuses(file, phase)
        assert done == ([0, n] if seconds is None else [*range(n + 1), n])  # no 30 seconds have passed
        (loss,) = (value for name, value in results.items() if re.match(rf"Loss_.*/{phase}_phase", name))
        assert f"loss {loss:.4f}, " in last
        assert re.search(r"\d+\.\d images/s\] *$", last)
    assert not re.search(r"mAP|Start|\x1b", file.getvalue())  # progress alone, no cursor movements


@pytest.mark.parametrize("on_terminal", [True, False])
def test_evaluation_during_training_has_its_own_bar(run, n_batches, on_terminal):
    settings, file = {"eval_every": 2, "peval_mode": "iteration"}, io.StringIO()
    if on_terminal:
        file.write(run_on_terminal(run, **settings))
    else:
        run(ProgressLogger(file), **settings)
    text = file.getvalue()
    assert text.count("Epoch 0 ended.") == 1
    assert statuses(file, "train")[0][-1] == n_batches["train"]
    assert text.count("End of eval phase") > 3
    assert "Eval on experience" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("logger", [ProgressBar, ProgressLogger])
def test_an_evaluation_has_one_bar_and_a_line_for_all_nested_sets(make_strategy, benchmark, logger):
    file, wanted = io.StringIO(), {"per_class": True, "stages": True}
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[logger(file)], **wanted))
    strategy.eval(benchmark.test_stream)
    text, row = file.getvalue(), find_nested(strategy).history["test"]["OF1"][2]
    n = sum(-(-len(experience.dataset) // 7) for experience in benchmark.test_stream)
    assert re.findall(r"eval exp 1-3: [^\r\n]* (\d+/\d+) \[", text) == [f"0/{n}", f"{n}/{n}"]
    assert "Starting eval on experience" not in text
    assert "Exp000" not in text
    numbers = " ".join(f"{score:.4f}" for score in row)
    nested = f"\tOF1 of test stream = Nested {numbers}, Last {row[2]:.4f}, NestedMean "
    stage = "\tmean_class_F1 of test stream = Stage 0."
    for line in (nested, stage, f"\tAP_Nested/{TEST}/cat = 0.", f"\tLoss_Stream/{TEST}"):
        assert (line in text) == (logger is ProgressLogger)


def test_the_epochs_of_an_experience_leave_one_line(make_strategy, benchmark):
    file = io.StringIO()
    make_strategy(loggers=[ProgressBar(file)], train_epochs=3).train(benchmark.train_stream[:2])
    lines = [line.rpartition("\r")[2] for line in file.getvalue().split("\n") if line]
    assert [line.split("|")[0] for line in lines] == [f"train exp {t} epoch 3/3: 100%" for t in (1, 2)]
