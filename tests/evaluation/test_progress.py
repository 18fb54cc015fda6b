"""A bar on a terminal, lines elsewhere; both with running loss and images per second."""

import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest

from avalanche_agcn.evaluation import find_nested, multilabel_evaluator
from avalanche_agcn.evaluation.progress import ProgressLogger, join_metrics


def run(make_strategy, benchmark, logger, **settings):
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[logger]), **settings)
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    return strategy


def run_on_terminal(make_strategy, benchmark, columns=120, **settings):
    """What a terminal gets to see."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with os.fdopen(writer, "w") as terminal:
        assert terminal.isatty()
        run(make_strategy, benchmark, ProgressLogger(terminal), **settings)
        terminal.flush()
        os.set_blocking(reader, False)
        chunks = []
        try:
            while chunk := os.read(reader, 65536):
                chunks.append(chunk)
        except BlockingIOError:
            pass
    os.close(reader)
    return b"".join(chunks).decode()


@pytest.mark.parametrize("columns", [120, 0])  # some terminals do not say how wide they are
def test_terminal_shows_bars_with_loss_and_speed(make_strategy, benchmark, columns):
    text = run_on_terminal(make_strategy, benchmark, columns)
    n_train = -(-len(benchmark.train_stream[0].dataset) // 7)
    n_test = -(-len(benchmark.test_stream[0].dataset) // 7)
    assert "\r" in text
    for label, n in (("train exp 0", n_train), ("eval exp 0", n_test)):
        bars = re.findall(rf"{label}: +100%\|.*?\| {n}/{n} .*?loss \d\.\d{{4}}, \d+\.\d images/s", text)
        assert bars, label
    assert "mAP_Nested/eval_phase/test_stream/Exp000 = 0." in text


def test_file_gets_plain_lines(make_strategy, benchmark):
    file = io.StringIO()
    strategy = run(make_strategy, benchmark, ProgressLogger(file))
    text = file.getvalue()
    n = len(benchmark.train_stream[0].dataset)
    loss = strategy.evaluator.get_last_metrics()["Loss_Epoch/train_phase/train_stream/Task000"]
    pattern = rf"train exp 0: {n} images in \d+\.\d s, loss {loss:.4f}, \d+\.\d images/s\n"
    assert re.search(pattern, text)
    assert re.search(r"eval exp 0: \d+ images in ", text)
    assert "\r" not in text
    assert "batches" not in text  # it was over before the first line was due


def test_progress_alone_has_no_metrics(make_strategy, benchmark):
    file = io.StringIO()
    run(make_strategy, benchmark, ProgressLogger(file, metrics=False))
    assert [line.split(":")[0] for line in file.getvalue().splitlines()] == ["train exp 0", "eval exp 0"]


def test_lines_come_as_often_as_asked(make_strategy, benchmark):
    file = io.StringIO()
    run(make_strategy, benchmark, ProgressLogger(file, seconds=0.0))
    n = -(-len(benchmark.train_stream[0].dataset) // 7)
    lines = re.findall(r"train exp 0: (\d+)/(\d+) batches, loss .*, about \d+ s left\n", file.getvalue())
    assert lines == [(str(i), str(n)) for i in range(1, n + 1)]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_evaluation_in_the_midst_of_training_has_progress_of_its_own(make_strategy, benchmark, on_terminal):
    settings = {"eval_every": 2, "peval_mode": "iteration"}
    if on_terminal:
        text = run_on_terminal(make_strategy, benchmark, **settings)
    else:
        file = io.StringIO()
        run(make_strategy, benchmark, ProgressLogger(file), **settings)
        text = file.getvalue()
    assert text.count("Epoch 0 ended.") == 1
    assert re.search(r"train exp 0: .*images/s", text)
    assert len(re.findall(r"Eval on experience 0 .*ended", text)) > 3


def test_metrics_of_all_sets_share_a_line(make_strategy, benchmark):
    file = io.StringIO()
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[ProgressLogger(file)]))
    strategy.eval(benchmark.test_stream)
    row = find_nested(strategy).history["test"].matrix("OF1")[2]
    line = f"\tOF1_Nested/eval_phase/test_stream/Exp000..002 = {row[0]:.4f} {row[1]:.4f} {row[2]:.4f}\n"
    assert line in file.getvalue()
    assert f"\tOF1/eval_phase/test_stream = Last {row[2]:.4f}, NestedMean " in file.getvalue()


def test_names_that_belong_to_no_group_are_kept():
    assert join_metrics({"odd": 1.0, "Loss_Stream/eval": 0.5}) == {
        "odd": "1.0000",
        "Loss_Stream/eval": "0.5000",
    }
    assert join_metrics({}) == {}
