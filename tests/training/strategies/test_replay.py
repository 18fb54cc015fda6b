import torch
from avalanche.training.plugins import EvaluationPlugin

from avalanche_agcn.training import PRSBuffer
from avalanche_agcn.training.strategies import Replay


def test_replay_takes_any_memory_and_any_model(benchmark, make_model):
    """AGCN's model without AGCN's losses."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = Replay(
        model=model, optimizer=optimizer, storage_policy=PRSBuffer(10), evaluator=EvaluationPlugin()
    )
    for experience in benchmark.train_stream:
        strategy.train(experience, eval_streams=[])
    assert len(strategy.replay.storage_policy) == 10
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 6)


def test_memory_smaller_than_a_batch_of_a_single_image_stream(benchmark, make_model):
    """Batches of one image, a memory of one image."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = Replay(
        model=model,
        optimizer=optimizer,
        storage_policy=PRSBuffer(1),
        train_mb_size=1,
        evaluator=EvaluationPlugin(),
    )
    strategy.train(benchmark.train_stream[0], eval_streams=[])
    assert len(strategy.replay.storage_policy) == 1
    assert all(parameter.isfinite().all() for parameter in model.parameters())
