import pytest
import torch
from avalanche.evaluation.metrics import WeightCheckpoint

from avalanche_agcn.evaluation import MultiLabelWandBLogger, find_nested, multilabel_evaluator

pytest.importorskip("wandb")
TEST = "eval_phase/test_stream"


@pytest.fixture
def make_logger(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    for folder in ("DATA", "CACHE"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / folder))
    params = {"mode": "offline", "settings": {"console": "off"}}
    made = []

    def make(**settings):
        made.append(MultiLabelWandBLogger(dir=str(tmp_path), params=params, save_code=False, **settings))
        return made[-1]

    yield make
    for logger in made:
        logger.wandb.finish()


@pytest.fixture
def logger(make_logger):
    return make_logger()


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


@pytest.mark.parametrize("log_artifacts", [True, False])
def test_checkpoints_are_logged_if_asked_for(make_logger, tmp_path, benchmark, make_strategy, log_artifacts):
    logger = make_logger(log_artifacts=log_artifacts, path=tmp_path / "checkpoints")
    evaluator = multilabel_evaluator(WeightCheckpoint(), loggers=[logger])
    strategy = make_strategy(evaluator=evaluator)
    strategy.train(benchmark.train_stream[0])
    logger.wandb.finish()
    (record,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert (b"Models/Model_0.pth" in record.read_bytes()) == log_artifacts
    files = list(tmp_path.glob("checkpoints/*"))
    assert [file.name for file in files] == ["Model_0.pth"] * log_artifacts
    for file in files:
        saved = torch.load(file, weights_only=False).state_dict()
        assert all(torch.equal(saved[name], value) for name, value in strategy.model.state_dict().items())


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
