"""The training loop that the README shows."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "runs" / "minimal.py"
SMALL = ("--n-classes", "4", "--n-experiences", "2", "--image-size", "32", "--device", "cpu")


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """A function that runs the script with options, and returns the scores that it wrote."""

    def run(*options):
        out = tmp_path / "scores.json"
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL, "--out", str(out), *options])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return json.loads(out.read_text(encoding="utf-8"))

    return run


def write_coco(root, n_images):
    """Images of four categories in COCO's folders: the last two categories come second."""
    (root / "annotations").mkdir()
    for subset in ("train2014", "val2014"):
        (root / subset).mkdir()
        names = [f"COCO_{subset}_{i:012}.jpg" for i in range(n_images)]
        for i, name in enumerate(names):
            Image.fromarray(np.full((40, 40, 3), 60 * (i % 4), np.uint8)).save(root / subset / name)
        annotations = {
            "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
            "categories": [{"id": c, "name": name} for c, name in enumerate(("cat", "dog", "bus", "car"))],
            "annotations": [{"id": i, "image_id": i, "category_id": i % 4} for i in range(n_images)],
        }
        (root / "annotations" / f"instances_{subset}.json").write_text(json.dumps(annotations))


def test_the_script_is_short_and_needs_no_program():
    text = SCRIPT.read_text(encoding="utf-8")
    assert text.count("\n") <= 80
    assert "experiments" not in text


def test_drawn_scenes_are_trained_on_and_scored_after_each_experience(run_script, capsys):
    scores = run_script("--n-train", "80")
    printed = capsys.readouterr().out
    assert scores["class_names"] == ["person", "bicycle", "car", "motorcycle"]
    for metric in ("mAP", "CF1", "OF1"):
        matrix = scores["nested"][metric]
        assert [len(row) for row in matrix] == [1, 2]
        assert scores["summary"][metric]["last"] == matrix[-1][-1]
        assert f"{metric} {100 * matrix[-1][-1]:.1f}" in printed


def test_the_same_seed_gives_the_same_scores(run_script):
    first = run_script("--n-train", "60", "--seed", "3")
    assert run_script("--n-train", "60", "--seed", "3") == first


def test_photos_are_read_from_the_folders_of_coco(run_script, tmp_path):
    write_coco(tmp_path, n_images=24)
    scores = run_script("--data", str(tmp_path), "--preset", "statistics")
    assert sorted(scores["class_names"]) == ["bus", "car", "cat", "dog"]
    assert [len(row) for row in scores["nested"]["mAP"]] == [1, 2]
