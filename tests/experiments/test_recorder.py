"""What runs record of their evaluations for reports."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation.functional import f1_from_counts
from avalanche_agcn.experiments import recorder
from avalanche_agcn.experiments.plots import open_picture
from avalanche_agcn.experiments.run import Run
from avalanche_agcn.experiments.settings import SMOKE, make_settings

SIZES = [2, 1, 3]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=12), st.integers(1, 5))
def test_pictures_with_labels_of_the_most_experiences_are_chosen(rows, n):
    def merit(k):
        blocks = (rows[k][:2], rows[k][2:3], rows[k][3:])
        return sum(map(any, blocks)), sum(rows[k]), -k

    first = {tuple(rows[k]): k for k in reversed(range(len(rows)))}  # of all pictures with the same labels
    expected = sorted(first.values(), key=merit)[-n:]
    targets = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    assert recorder.choose_pictures(targets, SIZES, n) == sorted(expected)


@pytest.fixture(scope="module", params=["finetuning", "agcn", "multitask"])
def ended(request, tmp_path_factory):
    """A run that has ended, its results, and the model's probabilities and the labels of all test images."""
    # Pictures are in several batches, and not all images are evaluated.
    settings = make_settings("scenes", SMOKE, method=request.param, eval_mb_size=3)
    run = Run(settings, tmp_path_factory.mktemp("run"), log=lambda text: None)
    results = run.run()
    run.strategy.model.eval()
    images, targets = zip(*[row[:2] for exp in run.benchmark.test_stream for row in exp.dataset], strict=True)
    with torch.no_grad():
        scores = run.recorder.calibration.probabilities(run.strategy.model(torch.stack(images)))
    return run, results, scores, torch.stack(targets).bool()


def test_pictures_have_the_probabilities_of_the_classes_seen_so_far_and_survive_saving(ended):
    run, results, scores, labels = ended
    assert 1 < len(results.pictures) <= recorder.N_PICTURES
    for picture, position in zip(results.pictures, run.recorder.positions, strict=True):  # of experience 0
        first, last = picture["probabilities"]
        np.testing.assert_allclose(last, 100 * scores[position], atol=0.006)
        assert picture["labels"] == [run.benchmark.class_names[c] for c in labels[position].nonzero()]
        assert len(first) == (0 if run.settings.method == "multitask" else 2)
        assert first != last[:2]
    again = recorder.EvaluationRecorder(run.benchmark)
    assert again.as_results()["pictures"][0]["probabilities"] == []
    again.load_state_dict(run.recorder.state_dict())
    assert again.as_results() == run.recorder.as_results()
    picture = results.pictures[0] | {"labels": ["cat"]}
    with pytest.raises(ValueError, match=r"scene .* now, not \['cat'\]: run it again"):
        open_picture(results, picture)


def test_counts_give_the_f1_of_the_scores_and_rows_of_class_ap_their_mean(ended):
    run, results, scores, labels = ended
    decisions = results.decisions
    assert decisions["true"] == labels.sum(0).tolist()
    for k, p in enumerate(decisions["thresholds"]):
        clear = (scores - p).abs().amin(0) > 1e-6  # of another batch size, so not equal to the last bit
        found = (scores >= p).sum(0)
        assert torch.equal(torch.tensor(decisions["found"][k])[clear], found[clear])
    limits = torch.tensor(results.thresholds, dtype=torch.float64)
    clear = (scores - limits).abs().amin(0) > 1e-6
    for name, found in (("chosen_found", scores >= limits), ("chosen_right", (scores >= limits) & labels)):
        assert torch.equal(torch.tensor(decisions[name])[clear], found.sum(0)[clear])
    # The metrics are those of the method's own output, which is not calibrated.
    is_found = scores.logit() >= run.recorder.calibration.offset  # where the logit was at least 0
    counts = [(is_found & labels).sum(0), is_found.sum(0), labels.sum(0), torch.ones(4)]
    f1 = f1_from_counts(torch.stack([count.double() for count in counts]).numpy())
    for metric in ("CF1", "OF1"):
        assert results.nested[metric][-1][-1] == pytest.approx(100 * getattr(f1, metric))
    for row, nested in zip(results.class_ap, results.nested["mAP"], strict=True):
        assert bool(row) == bool(nested)
        if row:
            known = [value for value in row if value is not None]
            assert np.mean(known) == pytest.approx(nested[-1], abs=0.01)
    assert results.class_ap[-1] == pytest.approx(list(results.per_class_ap.values()), abs=0.01)
    for name, stream in (("train", run.benchmark.train_stream), ("test", run.benchmark.test_stream)):
        assert results.n_images[name] == [len(experience.dataset) for experience in stream]


def test_the_worst_pictures_of_a_class_are_the_most_wrong_ones(ended):
    run, results, scores, labels = ended
    positions = torch.cat(list(run.benchmark.plan.evaluation["test"].positions)).tolist()
    for c, name in enumerate(results.class_names):
        missed = scores[labels[:, c], c].sort().values[: recorder.N_WORST]
        wrong = scores[~labels[:, c], c].sort(descending=True).values[: recorder.N_WORST]
        for error, expected in (("missed", missed), ("wrong", wrong)):
            kept = [one for one in results.worst if (one["class"], one["error"]) == (name, error)]
            assert [one["probability"] for one in kept] == pytest.approx(100 * expected, abs=0.006)
            for one in kept:
                row = positions.index(one["image"])
                assert one["labels"] == [results.class_names[k] for k in labels[row].nonzero()]
                assert 100 * scores[row, c] == pytest.approx(one["probability"], abs=0.006)
                open_picture(results, one)  # raises if it shows something else


@pytest.mark.parametrize("validation_size", [0.0, 0.3])
def test_a_scene_drawn_again_is_the_one_that_was_evaluated(tmp_path, validation_size):
    changes = {"limit": None, "validation_size": validation_size}
    settings = make_settings("scenes", SMOKE, method="finetuning", **changes)
    run = Run(settings, tmp_path, log=lambda text: None)
    results = run.run()
    stream = run.benchmark.valid_stream if validation_size else run.benchmark.test_stream
    dataset = stream[0].dataset.remove_current_transform_group()
    stored = json.loads((run.folder / "results.json").read_text())["pictures"]
    for picture, position in zip(stored, run.recorder.positions, strict=True):
        drawn = open_picture(results, picture)
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(dataset[position][0]))
