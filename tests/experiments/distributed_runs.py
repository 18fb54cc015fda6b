"""Runs of small drawn scenes in double precision, for `test_distributed`, in one process or several.

Each run leaves its folder in OUT/NAME/out and, of each process, OUT/NAME/trace-<rank>.pt.
"""

import contextlib
import itertools
from pathlib import Path
from unittest.mock import patch

import torch
from avalanche.distributed.distributed_helper import DistributedHelper

from avalanche_agcn.benchmarks import SplitScenes
from avalanche_agcn.evaluation import find_nested, multilabel_evaluator
from avalanche_agcn.experiments import build
from avalanche_agcn.experiments.build import make_strategy
from avalanche_agcn.experiments.cli import main as run_command
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import Settings, make_settings
from avalanche_agcn.models import MultiLabelClassifier, create_backbone
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training import ER
from avalanche_agcn.training.distributed import process_group, process_rank
from avalanche_agcn.training.loader import StreamSampler
from avalanche_agcn.training.statistics.features import FeatureStatistics

SMALL = {"n_classes": 6, "n_experiences": 3, "n_train": 37, "n_test": 17, "image_size": 32}
SMALL |= {"train_mb_size": 4, "eval_mb_size": 4}  # the last step of an experience has one image
SMALL |= {"mem_size": 7, "batch_size_mem": 3, "sample_size": 3, "random_features": 64, "held_images": 7}
SMALL |= {"freeze_batchnorm": True, "checkpoint_minutes": 0.0}


class Stop(Exception):
    """Ends a run before its last experience."""


def settings_of(case: dict) -> Settings:
    return make_settings("scenes", SMALL, **{k: v for k, v in case.items() if k != "stop_after"})


def trace(case: dict, out: Path, *, resume: bool = False) -> dict:
    """Run a case, and return what must not depend on the number of processes."""
    steps = []
    draw = StreamSampler._own_rows

    def record(self, *args):
        rows = draw(self, *args)
        steps.append([tuple(key) for key in rows if not key.padding])
        return rows

    stopped = not resume and "stop_after" in case
    save = save_and_stop(Run._save, case["stop_after"]) if stopped else Run._save
    with (
        patch.object(StreamSampler, "_own_rows", record),
        patch.object(build, "make_strategy", make_double),
        patch.object(Run, "_save", save),
        contextlib.suppress(Stop),
    ):
        run = Run(settings_of(case), out, resume=resume, log=lambda message: None)
        results = run.run()
        return {"steps": steps, "nested": results.nested, **describe(run.strategy)}
    return {}


def describe(strategy) -> dict:
    """Weights, sums, memory and losses of a strategy."""
    plugins = strategy.plugins
    return {
        "weights": strategy.model.state_dict(),
        "acm": [p.acm.state_dict() for p in plugins if hasattr(p, "acm")],
        "statistics": [sums_of(p.statistics) for p in plugins if hasattr(p, "statistics")],
        "memory": [p.storage_policy.keys for p in plugins if hasattr(p, "storage_policy")],
        "losses": {k: v for k, v in strategy.evaluator.get_last_metrics().items() if "Loss" in k},
    }


def sums_of(statistics) -> list[torch.Tensor] | dict[str, torch.Tensor]:
    """Sums of each experience, which one process may keep as a factor and several as a matrix."""
    if isinstance(statistics, FeatureStatistics):
        return [statistics.moments(t) for t in range(statistics.n_experiences)]
    return statistics.state_dict()


def own_pipeline(*, wrapped: bool) -> dict:
    """What a user may do without the run tool, with another seed in each process."""
    torch.manual_seed(process_rank()[0])
    sizes = ("n_classes", "n_experiences", "n_train", "n_test", "image_size")
    benchmark = SplitScenes(**{name: SMALL[name] for name in sizes})
    backbone = create_backbone("small", freeze_batchnorm=True)
    model = MultiLabelClassifier(backbone, benchmark.n_classes).double()
    backbone.register_forward_pre_hook(_to_double)
    strategy = ER(
        model=DistributedHelper.wrap_model(model) if wrapped else model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        seed=process_rank()[0],
        evaluator=multilabel_evaluator(loggers=[]),
        **{name: SMALL[name] for name in ("mem_size", "batch_size_mem", "train_mb_size")},
    )
    for t, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: t + 1])
    strategy.model = unwrap(strategy.model)
    return {"steps": [], "nested": find_nested(strategy).history["test"], **describe(strategy)}


def make_double(*args, **kwargs):
    """A strategy whose model computes in double precision, also if its state is restored."""
    strategy = make_strategy(*args, **kwargs)
    strategy.model.double().backbone.register_forward_pre_hook(_to_double)
    return strategy


def _to_double(module, inputs):
    return tuple(x.double() for x in inputs)


def save_and_stop(save, n_saves: int):
    """A function that saves, and stops the run after a number of saves."""
    saves = itertools.count(1)

    def save_or_stop(*args):
        save(*args)
        if next(saves) == n_saves:
            raise Stop

    return save_or_stop


def main(out: Path, cases: dict[str, dict], *, resume: bool = False, command_line: bool = False) -> None:
    if command_line:
        options = ["--smoke", "--method", "finetuning", "--out", str(out / "command line")]
        run_command("coco", None, options)
    with process_group():
        for name, case in cases.items():
            (out / name).mkdir(parents=True, exist_ok=True)
            if "own pipeline" in case:
                found = own_pipeline(wrapped=case["own pipeline"])
            else:
                found = trace(case, out / name / "out", resume=resume)
            torch.save(found, out / name / f"trace-{process_rank()[0]}.pt")
