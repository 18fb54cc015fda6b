import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avalanche_agcn.evaluation import LabelledPicture, labelled_pictures
from avalanche_agcn.evaluation.pictures import LOOKS, MOST_LINES, SIGNS, found_labels

NAMES = ["cat", "dog", "car", "bus", "tree", "sea"]
probabilities = st.lists(st.floats(0, 1), max_size=len(NAMES))


def picture(labels, *scores):
    return LabelledPicture(np.zeros((8, 6, 3)), labels, scores)


def lines(axes):
    return [text.get_text() for text in axes.texts]


@given(probabilities, st.sets(st.sampled_from(NAMES)), st.floats(0, 1))
def test_found_labels_are_a_partition_by_threshold_and_truth(scores, labels, threshold):
    found = found_labels(scores, labels, NAMES, threshold)
    seen = dict(zip(NAMES, scores, strict=False))
    assert set(found.right) == {name for name, p in seen.items() if p >= threshold and name in labels}
    assert set(found.wrong) == {name for name, p in seen.items() if p >= threshold and name not in labels}
    assert set(found.missed) == {name for name, p in seen.items() if p < threshold and name in labels}
    for names in found:
        assert [seen[name] for name in names] == sorted((seen[name] for name in names), reverse=True)


def test_cells_tell_right_missed_and_wrong_by_sign_and_colour():
    figure = labelled_pictures([picture(["cat", "sea"], [0.7], [0.2, 0.9, 0.69])], class_names=NAMES)
    first, second = figure.axes[1:]
    assert lines(first) == ["✓ cat"]
    assert lines(second) == ["○ cat", "✗ dog"]
    assert [text.get_color() for text in second.texts] == [LOOKS["missed"]["color"], LOOKS["wrong"]["color"]]
    assert len({look["color"] for look in LOOKS.values()}) == len(set(SIGNS.values())) == 3
    assert first.get_title(loc="left") == "after experience 1\n1 classes"
    assert second.get_title(loc="left") == "after experience 2\n3 classes"
    explained = " ".join(text.get_text() for text in figure.texts)
    assert all(sign in explained for sign in SIGNS.values())


def test_the_first_and_last_experience_are_among_few_columns():
    scores = [[0.1] * (t + 1) for t in range(6)]
    figure = labelled_pictures([picture(["cat"], *scores)], class_names=NAMES)
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes[1:]]
    assert titles == [f"after experience {t}" for t in (1, 3, 4, 6)]


def test_experiences_that_were_not_evaluated_have_no_column():
    figure = labelled_pictures([picture(["cat"], [], [], [0.9, 0.1])], class_names=NAMES)
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes[1:]] == ["after experience 3"]


def test_what_does_not_fit_into_a_cell_is_counted():
    names = [f"class {k}" for k in range(20)]
    figure = labelled_pictures([picture(["class 3"], [0.9] * 20)], class_names=names)
    written = lines(figure.axes[1])
    assert len(written) == MOST_LINES
    assert written[0] == "✓ class 3"
    assert written[-1] == f"✗ … {20 - (MOST_LINES - 1)} more"


@pytest.mark.parametrize("n_columns", [1, 4])
@pytest.mark.parametrize("n_pictures", [1, 6])
def test_texts_do_not_overlap_and_are_not_cut_off(n_columns, n_pictures):
    names = [f"tennis racket {k}" for k in range(8)]
    pictures = [picture(names[:3], *[[0.9] * 8] * n_columns) for _ in range(n_pictures)]
    title = (
        "SplitScenes (drawn scenes): 40 classes in 10 experiences\nat most 24 images\nlabels found at p ≥ 0.7"
    )
    figure = labelled_pictures(pictures, class_names=names, title=title)
    figure.draw_without_rendering()
    width, height = figure.canvas.get_width_height()
    cells = [axes._left_title for axes in figure.axes if axes.get_title(loc="left")]
    texts = [*figure.texts, *cells, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [text.get_window_extent() for text in texts]
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    images = [axes.images[0].get_window_extent() for axes in figure.axes if axes.images]
    everything = boxes + images
    for k, box in enumerate(everything):
        for other in everything[:k]:
            apart_x = min(box.x1, other.x1) - max(box.x0, other.x0) <= 1
            apart_y = min(box.y1, other.y1) - max(box.y0, other.y0) <= 1
            assert apart_x or apart_y


@pytest.mark.parametrize("pictures", [[], [picture(["cat"])], [picture(["cat"], [], [])]])
def test_nothing_to_show_is_refused(pictures):
    with pytest.raises(ValueError, match="no picture to draw"):
        labelled_pictures(pictures, class_names=NAMES)
