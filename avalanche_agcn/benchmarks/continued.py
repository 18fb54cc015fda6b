"""Continued benchmarks: the experiences of an earlier one, then those of new photos and classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from avalanche_agcn.benchmarks import split
from avalanche_agcn.benchmarks.csv_files import CSVColumns, Log, PhotoLabels
from avalanche_agcn.benchmarks.image_files import ImageFiles, Truncated
from avalanche_agcn.benchmarks.multilabel import Images, Plan, make_plan
from avalanche_agcn.benchmarks.photos import read_photos, split_photos, tables_of_splits
from avalanche_agcn.benchmarks.tables import LabelTable
from avalanche_agcn.checks import listed


@dataclass(frozen=True, kw_only=True)
class FurtherPhotos:
    """Photos with classes that an earlier benchmark did not have; for the arguments see `SplitPhotos`.

    Their labels may name earlier classes, too. ``n_experiences`` is the number of experiences to add.
    """

    images: str | os.PathLike
    labels: str | os.PathLike
    test_labels: str | os.PathLike | None = None
    test_size: float = 0.2
    separator: str | None = None
    file_column: str | None = None
    label_columns: tuple[str, ...] = ()
    n_experiences: int = 1
    validation_size: float | int = 0
    limit: int | None = None
    seed: int = 0
    truncated: Truncated = "warn"

    def read(self, known: Sequence[str], log: Log) -> tuple[LabelTable, LabelTable]:
        """Train and test labels in one order of classes: the known ones, then those that are new."""
        found = self._read(self.labels, log)
        photos = found.table
        new = [name for name in photos.class_names if name not in known]
        if not new:
            raise ValueError(
                f"{self.labels} has no new class: the run already knows {listed(photos.class_names)}. To "
                "train on more photos of these, start a new run with all photos."
            )
        _check_spelling(new, known)
        names = [*known, *new]
        if self.test_labels is not None:
            test_photos = self._read(self.test_labels, log).table
            return _widen(photos, names, self.labels), _widen(test_photos, names, self.test_labels)
        if found.divides:
            train, test = tables_of_splits(found, log)
            return _widen(train, names, self.labels), _widen(test, names, self.labels)
        is_test = split_photos(photos.labels, self.test_size)
        if not is_test.any():
            raise ValueError(
                f"test_size={self.test_size} of {len(is_test)} photos leaves no test photo; add photos or "
                "test_labels."
            )
        photos = _widen(photos, names, self.labels)
        return photos.rows(~is_test), photos.rows(is_test)

    def _read(self, labels: str | os.PathLike, log: Log) -> PhotoLabels:
        columns = CSVColumns(self.separator, self.file_column, self.label_columns)
        return read_photos(self.images, labels, columns=columns, truncated=self.truncated, log=log)


def continue_plan(known: Plan, further: FurtherPhotos, log: Log = print) -> Plan:
    """The experiences of a plan of photos, followed by those of further photos.

    Earlier experiences keep their photos, classes and columns. New classes follow, in the protocol's order of
    its own classes, and new photos are divided among the new experiences by the protocol's rule, counting new
    classes only. A new photo that also shows earlier classes is trained on for new ones only; one that shows
    no new class is not trained on. In test targets a class that is not named is absent: earlier photos have 0
    for new classes. A new test photo without a new class is in the first new test set.
    """
    n_known = len(known.class_names)
    train, test = further.read(known.class_names, log)
    new_names = train.class_names[n_known:]
    order = known.protocol.class_order
    columns = split.resolve_class_order(order if isinstance(order, str) else "data", new_names)
    order_of_all = [*range(n_known), *(n_known + column for column in columns)]
    train, test = _reorder(train, order_of_all), _reorder(test, order_of_all)
    _check_kept_apart(known, further, train, test)
    added = _plan_new_classes(known, further, train, test)
    _log_photos(train.labels, added, n_known, log)
    sizes = [*_sizes(known), *_sizes(added)]
    joined_train = _join(known.train, added.train, train.labels)
    evaluation = {}
    for name, images in known.evaluation.items():
        if name == "test":
            evaluation[name] = _join(images, added.evaluation[name], test.labels)
        else:  # images held out of the train source, if there are enough
            none = [torch.empty(0, dtype=torch.long)] * len(added.columns)
            held_out = added.evaluation.get(name, added.train._replace(positions=none))
            joined = _join(images, held_out, train.labels)
            evaluation[name] = joined._replace(source=joined_train.source)
    protocol = replace(
        known.protocol, n_classes=sum(sizes), n_experiences=len(sizes), classes_per_experience=tuple(sizes)
    )
    return replace(
        known,
        train=joined_train,
        evaluation=evaluation,
        class_names=train.class_names,
        protocol=protocol,
    )


def new_part(plan: Plan, n_known: int) -> Plan:
    """A plan without the photos of its first ``n_known`` experiences."""

    def later(images: Images) -> Images:
        return images._replace(positions=images.positions[n_known:])

    evaluation = {name: later(images) for name, images in plan.evaluation.items()}
    return replace(plan, train=later(plan.train), evaluation=evaluation)


def existing_part(plan: Plan) -> tuple[Plan, int]:
    """The plan without evaluation photos whose files are missing, and the number of these photos."""
    n_missing = 0
    evaluation = {}
    for name, images in plan.evaluation.items():
        positions = []
        for part in images.positions:
            is_there = [os.path.isfile(images.source.path(k)) for k in part.tolist()]  # type: ignore[attr-defined]
            positions.append(part[torch.tensor(is_there, dtype=torch.bool)])
            n_missing += is_there.count(False)
        evaluation[name] = images._replace(positions=positions)
    return replace(plan, evaluation=evaluation), n_missing


def join_files(earlier: ImageFiles, later: ImageFiles) -> ImageFiles:
    """The images of two folders as those of one above both; an image keeps its name if no other has it."""
    try:
        root = os.path.commonpath([os.path.abspath(earlier.root), os.path.abspath(later.root)])
    except ValueError:
        raise ValueError(
            f"The photos of the run are in {earlier.root} and the new ones in {later.root}, on different "
            "drives: copy the new ones to the drive of the others."
        ) from None
    files = []
    for source in (earlier, later):
        files += [os.path.relpath(os.path.abspath(source.path(k)), root) for k in range(len(source))]
    names = [earlier.image_name(k) for k in range(len(earlier))]
    taken = set(names)
    for k in range(len(later)):
        name = later.image_name(k)
        names.append(files[len(names)] if name in taken else name)
    return ImageFiles(root, files, truncated=later.truncated, names=names)


def _sizes(plan: Plan) -> list[int]:
    return [len(columns) for columns in plan.columns]


def _join(earlier: Images, later: Images, later_labels: Tensor) -> Images:
    """One stream after the other; ``later_labels`` have the columns of all classes."""
    assert isinstance(earlier.source, ImageFiles)
    assert isinstance(later.source, ImageFiles)
    n_new = later_labels.shape[1] - earlier.labels.shape[1]
    shifted = [positions + len(earlier.source) for positions in later.positions]
    return Images(
        join_files(earlier.source, later.source),
        torch.cat([pad(earlier.labels, (0, n_new)), later_labels]),
        [*earlier.positions, *shifted],
    )


def _plan_new_classes(known: Plan, further: FurtherPhotos, train: LabelTable, test: LabelTable) -> Plan:
    """A plan of the new photos, with the new classes alone."""
    n_known = len(known.class_names)
    new_names = train.class_names[n_known:]
    sizes = split.nearly_equal_sizes(len(new_names), further.n_experiences)
    protocol = replace(
        known.protocol,
        n_classes=None,
        n_experiences=None,
        classes_per_experience=sizes,
        class_order="data",
    )
    plan = make_plan(
        ImageFiles(further.images, train.files, train.labels[:, n_known:], truncated=further.truncated),
        ImageFiles(further.images, test.files, test.labels[:, n_known:], truncated=further.truncated),
        protocol,
        class_names=new_names,
        validation_size=further.validation_size,
        seed=further.seed,
    )
    tested = plan.evaluation["test"]
    others = test.labels.any(1)
    others[torch.cat(list(tested.positions))] = False
    first = torch.cat([tested.positions[0], others.nonzero().flatten()]).sort().values
    evaluation = {**plan.evaluation, "test": tested._replace(positions=[first, *tested.positions[1:]])}
    plan = replace(plan, evaluation=evaluation)
    return plan if further.limit is None else plan.limited(further.limit)


def _widen(table: LabelTable, names: Sequence[str], path: str | os.PathLike) -> LabelTable:
    """The same labels with a column for each of the names."""
    columns = {name: column for column, name in enumerate(names)}
    unknown = [name for name in table.class_names if name not in columns]
    if unknown:
        raise ValueError(
            f"{path} has classes that neither the run nor the train labels have: {listed(unknown)}; remove "
            "them."
        )
    labels = torch.zeros(len(table.files), len(names), dtype=torch.int8)
    labels[:, [columns[name] for name in table.class_names]] = table.labels
    return LabelTable(table.files, labels, list(names))


def _reorder(table: LabelTable, columns: Sequence[int]) -> LabelTable:
    names = [table.class_names[column] for column in columns]
    return LabelTable(table.files, table.labels[:, list(columns)], names)


def _check_spelling(new: Sequence[str], known: Sequence[str]) -> None:
    """Reject a new name that looks like a known one."""
    plain = {" ".join(name.lower().split()): name for name in known}
    for name in new:
        other = plain.get(" ".join(name.lower().split()))
        if other is not None:
            raise ValueError(
                f"the label {name!r} differs from the known class {other!r} only in case or spaces: write "
                "both the same, or give the new class another name."
            )


def _check_kept_apart(known: Plan, further: FurtherPhotos, train: LabelTable, test: LabelTable) -> None:
    """Reject new train photos that the earlier run is tested on, and new test photos that it trained on."""
    _check_no_photo_again(known.evaluation["test"], further, train, "train", "test")
    _check_no_photo_again(known.train, further, test, "test", "train")


def _check_no_photo_again(
    earlier: Images, further: FurtherPhotos, table: LabelTable, new_use: str, earlier_use: str
) -> None:
    """Reject a table of new photos if one of them is among the earlier images; uses are train or test."""
    source = earlier.source
    assert isinstance(source, ImageFiles)
    positions = torch.cat(list(earlier.positions)).tolist()
    earlier_paths = {os.path.realpath(source.path(position)) for position in positions}
    again = []
    for file in table.files:
        path = os.path.realpath(os.path.join(further.images, file))  # one photo may have several paths
        if path in earlier_paths:
            again.append(file)
    if again:
        raise ValueError(
            f"{len(again)} of the new {new_use} photos are {earlier_use} photos of the run: {listed(again)}; "
            "remove them from the new labels."
        )


def _log_photos(labels: Tensor, added: Plan, n_known: int, log: Log) -> None:
    """Log what is added, and how photos with earlier classes are used."""
    n_experiences = len(added.columns)
    count = "one experience" if n_experiences == 1 else f"{n_experiences} experiences"
    log(f"New classes: {listed(added.class_names)}, in {count}.")
    shows_known, shows_new = labels[:, :n_known].any(1), labels[:, n_known:].any(1)
    n_both, n_known_only = int((shows_known & shows_new).sum()), int((shows_known & ~shows_new).sum())
    if n_both:
        log(f"{n_both} new train photos also show known classes; they are trained on for new classes only.")
    if n_known_only:
        log(f"{n_known_only} new train photos show known classes only; they are not trained on.")
