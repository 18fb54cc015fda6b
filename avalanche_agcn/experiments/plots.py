"""Plots of results: learning curves, AP of each class, correlation matrices, labelled pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from avalanche_agcn.benchmarks.image_files import check_inside, load_image
from avalanche_agcn.benchmarks.scenes import CLASS_NAMES, ScenesDataset, true_cooccurrence
from avalanche_agcn.evaluation.plots import (
    LabelledPicture,
    class_heatmap,
    correlation_heatmap,
    labelled_pictures,
    learning_curve,
)
from avalanche_agcn.experiments.methods import name_of, style_of
from avalanche_agcn.experiments.results import Results, group_by_label


def curves(results: Sequence[Results], metric: str = "mAP") -> Figure:
    """The metric on all classes seen, after each experience: mean over seeds in a band of one deviation.

    A method that is evaluated at the end only, such as Multi-Task, is a dashed line across.
    """
    rows: dict[str, list[list[float]]] = {}
    levels: dict[str, list[float]] = {}
    styles = {}
    for label, group in group_by_label(results).items():
        name = name_of(label)
        if style := style_of(label):
            styles[name] = style
        if all(group[0].nested[metric]):
            rows[name] = [[_fraction(row[-1]) for row in result.nested[metric]] for result in group]
        else:
            levels[name] = [_fraction(result.nested[metric][-1][-1]) for result in group]
    return learning_curve(
        rows,
        levels=levels,
        styles=styles,
        ylabel=f"{metric} on classes seen (%)",
        title=describe_stream(results[0]),
    )


def dependence(results: Sequence[Results], setting: str, xlabel: str, **levels: Sequence[Results]) -> Figure:
    """Last mAP by the value of a setting, a curve for each row: mean over seeds in a band of one deviation.

    Args:
        results: with labels such as ``"er, 9 experiences"``: the part before the comma names the row.
        setting: of the run or of the method.
        xlabel: what it is.
        levels: rows without the setting, as horizontal lines, by name.
    """
    rows: dict[str, dict[float, list[float]]] = {}
    for result in results:
        value = {**result.settings, **result.settings["method_settings"]}[setting]
        row = rows.setdefault(result.label.partition(", ")[0], {}).setdefault(value, [])
        row.append(_fraction(result.summary["mAP"]["last"]))
    x = sorted(next(iter(rows.values())))
    return learning_curve(
        {name_of(label): list(zip(*(own[value] for value in x), strict=True)) for label, own in rows.items()},
        levels={
            name: [_fraction(result.summary["mAP"]["last"]) for result in own] for name, own in levels.items()
        },
        styles={
            name_of(label): style
            for label in rows
            if (style := style_of(label) or style_of(label.partition(" ")[0]))
        },
        ylabel="mAP after the last experience (%)",
        x=x,
        xlabel=xlabel,
    )


def class_precision(results: Sequence[Results]) -> Figure:
    """AP of each class after the last experience, a column for each method: mean over seeds."""
    names = results[0].class_names
    scores = {
        name_of(label): np.mean(
            [[_fraction(result.per_class_ap[name]) for name in names] for result in group], axis=0
        ).tolist()
        for label, group in group_by_label(results).items()
    }
    return class_heatmap(
        scores,
        class_names=names,
        block_sizes=results[0].classes_per_experience,
        title=f"{describe_stream(results[0])}\nAP of each class at the end",
    )


def correlation(result: Results) -> Figure:
    """The final correlation matrix of an AGCN run, beside the truth where it is known."""
    matrices: dict[str, Any] = {f"ACM of {name_of(result.label)}": result.acm}
    title, truth = true_matrix(result)
    if truth is not None:
        matrices[title] = truth
    return correlation_heatmap(
        matrices,
        class_names=result.class_names,
        block_sizes=result.classes_per_experience,
        title=describe_stream(result),
    )


def true_matrix(result: Results) -> tuple[str, Any]:
    """Title and entries [i][j] = P(i | j) of the true matrix of a run; None if it is not known."""
    if result.benchmark == "SplitScenes":
        return "true co-occurrence", true_cooccurrence(result.class_names)
    return "co-occurrence of the train images", result.cooccurrence


def pictures(result: Results) -> Figure:
    """Test pictures of a run with the labels found at p ≥ 0.7, as more experiences are learned.

    Raises:
        FileNotFoundError: if photos are not where they were when the run was made.
        ValueError: if scenes are drawn differently now.
    """
    shown = [
        LabelledPicture(
            open_picture(result, picture),
            picture["labels"],
            [[_fraction(p) for p in row] for row in picture["probabilities"]],
        )
        for picture in result.pictures or []
    ]
    method = name_of(result.label)
    title = f"{describe_stream(result)}\nlabels found by {method} at p ≥ 0.7"
    return labelled_pictures(shown, class_names=result.class_names, title=title)


SCENE_SETTINGS = ("validation_size", "n_train", "n_test", "image_size", "seed")


def open_picture(result: Results, picture: dict[str, Any]) -> Image.Image:
    """One of ``result.pictures``: a photo read from the data, or a scene drawn again from the settings."""
    if result.benchmark == "SplitScenes":
        return _draw_scene(result, picture)
    root = result.settings.get("dataset_root")
    if root is None:
        raise FileNotFoundError("The settings of the run do not have the folder of its images.")
    check_inside(str(picture["image"]), "the image of a picture")
    return load_image(Path(root) / str(picture["image"]))


def _draw_scene(result: Results, picture: dict[str, Any]) -> Image.Image:
    settings, number = result.settings, picture["image"]
    missing = [name for name in SCENE_SETTINGS if name not in settings]
    if missing:
        raise ValueError(f"the settings of {result.name} lack {', '.join(missing)} to draw scenes again.")
    held_out = bool(settings["validation_size"])
    scenes = ScenesDataset(
        settings["n_train" if held_out else "n_test"],
        class_names=[name for name in CLASS_NAMES if name in result.class_names],
        image_size=settings["image_size"],
        split="train" if held_out else "test",
        seed=settings["seed"],
        in_memory=False,
    )
    if not isinstance(number, int) or number >= len(scenes):
        raise ValueError(f"there is no scene {number!r} among {len(scenes)}: run {result.name} again.")
    image, target = scenes[number]
    labels = {scenes.class_names[column] for column in target.nonzero()}
    if labels != set(picture["labels"]):
        raise ValueError(
            f"scene {number} shows {sorted(labels)}, but showed {picture['labels']} in the run: "
            "scenes are drawn differently now, run it again."
        )
    return image


def describe_stream(result: Results) -> str:
    """Title of a plot: ``"SplitScenes (drawn scenes): 40 classes in 10 experiences"``.

    A second line says if it is a part of the data only, or if the network was frozen.
    """
    what = " (drawn scenes)" if result.benchmark == "SplitScenes" else ""
    n_classes, n_experiences = len(result.class_names), len(result.nested["mAP"])
    stream = f"{result.benchmark}{what}: {n_classes} classes in {n_experiences} experiences"
    parts = {
        "limit": "at most {} images per experience",
        "validation_size": "on {:.0%} of the train images",
        "freeze_backbone": "network frozen",
    }
    notes = [text.format(value) for name, text in parts.items() if (value := result.settings.get(name))]
    return stream + ("\n" + ", ".join(notes) if notes else "")


def _fraction(percent: float | None) -> float:
    return math.nan if percent is None else percent / 100
