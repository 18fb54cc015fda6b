import pytest

from avalanche_agcn.evaluation import MultiLabelWandBLogger, find_nested, multilabel_evaluator

pytest.importorskip("wandb")
TEST = "eval_phase/test_stream"


@pytest.fixture
def logger(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    params = {"mode": "offline", "settings": {"console": "off"}}
    logger = MultiLabelWandBLogger(dir=str(tmp_path), params=params, save_code=False)
    yield logger
    logger.wandb.finish()


def test_numbers_and_figures_are_logged_offline(logger, tmp_path, benchmark, make_strategy):
    strategy = make_strategy(evaluator=multilabel_evaluator(loggers=[logger], figures=True))
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream[:1])
    logger.wandb.log({}, step=logger.step + 1, commit=True)  # a step is written when the next one begins
    summary = logger.wandb.run.summary
    row = find_nested(strategy).history["test"].matrix("mAP")[0]
    assert summary[f"mAP_Last/{TEST}"] == pytest.approx(row[0])
    assert summary[f"mAP_Nested/{TEST}/Exp000"] == pytest.approx(row[0])
    assert summary[f"LearningCurve/{TEST}"]["_type"] == "image-file"
    pictures = list(tmp_path.glob("wandb/offline-run-*/files/media/images/**/*.png"))
    assert len(pictures) == 1
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


def test_id_of_the_caller_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    params = {"id": "mine", "mode": "offline", "settings": {"console": "off"}}
    logger = MultiLabelWandBLogger(dir=str(tmp_path), params=params, save_code=False)
    try:
        assert logger.wandb.run.id == "mine"
        logger.log_single_metric("text", "neither number nor figure", 0)
        assert "text" not in dict(logger.wandb.run.summary)
    finally:
        logger.wandb.finish()
