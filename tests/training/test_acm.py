import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.training.acm import AugmentedCorrelationMatrix

NAN = float("nan")


def random_stream(seed, sizes, n_images, hard=False):
    """Per experience: hard labels of its own classes and labels of the old ones."""
    generator = torch.Generator().manual_seed(seed)
    stream, n_old = [], 0
    for size in sizes:
        targets = (torch.rand(n_images, size, generator=generator) < 0.4).float()
        soft = torch.rand(n_images, n_old, generator=generator, dtype=torch.float64)
        stream.append((targets, soft.round() if hard else soft))
        n_old += size
    return stream


def feed(acm, stream, batch=7):
    for targets, soft in stream:
        acm.begin(targets.shape[1])
        for rows in torch.arange(len(targets)).split(batch):
            acm.update(targets[rows], soft[rows])
    return acm


def ratio(numerator, denominator):
    return numerator / denominator if denominator > 0 else 0.0


def counted_directly(stream):
    """Eq. 1 to 4, entry by entry, from the whole stream at once."""
    n = sum(targets.shape[1] for targets, _ in stream)
    expected = torch.eye(n, dtype=torch.float64)
    n_old = 0
    for targets, soft in stream:
        y, n_new = targets.double(), targets.shape[1]
        for j in range(n_new):
            count = sum(y[:, j].tolist())
            for i in range(n_new):
                if i != j:
                    both = sum((y[:, i] * y[:, j]).tolist())
                    expected[n_old + i, n_old + j] = ratio(both, count)
            for i in range(n_old):
                both = sum((soft[:, i] * y[:, j]).tolist())
                expected[i, n_old + j] = ratio(both, count)  # R, Eq. 3
                expected[n_old + j, i] = ratio(both, sum(soft[:, i].tolist()))  # Q, Eq. 4
        n_old += n_new
    return expected


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    n_images=st.integers(0, 12),
    batch=st.integers(1, 12),
    hard=st.booleans(),
)
def test_matrix_equals_direct_count_under_any_batch_split(seed, sizes, n_images, batch, hard):
    stream = random_stream(seed, sizes, n_images, hard)
    matrix = feed(AugmentedCorrelationMatrix(), stream, batch).matrix()
    torch.testing.assert_close(matrix, counted_directly(stream), rtol=0, atol=1e-12)


def test_oracle_teacher_gives_the_true_probabilities_of_each_experiences_images():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(300, 5, generator=generator) < 0.5).float()
    labels[:, 4] *= labels[:, 0]  # a relation worth finding
    parts = labels.split(150)
    acm = AugmentedCorrelationMatrix()
    acm.begin(2)
    acm.update(parts[0][:, :2])
    acm.begin(3)
    acm.update(parts[1][:, 2:], parts[1][:, :2])

    def truth(images):
        counts = images.double().T @ images.double()
        return counts / counts.diagonal()

    matrix = acm.matrix()
    torch.testing.assert_close(matrix[:2, :2], truth(parts[0])[:2, :2], rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix[2:], truth(parts[1])[2:], rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix[:2, 2:], truth(parts[1])[:2, 2:], rtol=0, atol=1e-12)
    assert matrix[0, 4] == 1


def test_sums_hold_their_precision_over_many_float32_batches():
    acm = AugmentedCorrelationMatrix()
    acm.begin(1)
    acm.begin(1)
    soft = torch.full((1, 1), 0.1)
    for _ in range(5000):
        acm.update(torch.ones(1, 1), soft)
    expected = torch.tensor(0.1).double()  # float32's 0.1, to float64's precision
    torch.testing.assert_close(acm.matrix()[0, 1], expected, rtol=1e-12, atol=0)


def test_old_block_is_frozen_by_begin():
    stream = random_stream(1, [2, 2], 20)
    acm = feed(AugmentedCorrelationMatrix(), stream[:1])
    before = acm.matrix().clone()
    acm.begin(2)
    acm.update(*stream[1])
    assert torch.equal(acm.matrix()[:2, :2], before)


def test_no_class_at_all_gives_an_empty_matrix():
    acm = AugmentedCorrelationMatrix()
    assert acm.matrix().shape == (0, 0)
    acm.begin(0)
    acm.update(torch.zeros(3, 0))
    assert acm.matrix().shape == (0, 0)
    assert acm.block_sizes == (0,)


def test_rows_unlabelled_for_a_new_class_are_left_out():
    targets, soft = random_stream(2, [1, 3], 20)[1]
    acm, cleaned = AugmentedCorrelationMatrix(), AugmentedCorrelationMatrix()
    for matrix in (acm, cleaned):
        matrix.begin(1)
        matrix.begin(3)
    replayed = targets.clone()
    replayed[5] = NAN
    replayed[9, 1] = NAN
    acm.update(replayed, soft)
    kept = [i for i in range(20) if i not in (5, 9)]
    cleaned.update(targets[kept], soft[kept])
    torch.testing.assert_close(acm.matrix(), cleaned.matrix(), rtol=0, atol=1e-12)


def test_stream_counts_correct_the_denominator_of_q():
    acm = AugmentedCorrelationMatrix(q_counts="stream")
    acm.begin(1)
    acm.update(torch.tensor([[1.0], [1.0], [1.0], [0.0]]))  # class 0: 3
    acm.begin(1)
    acm.update(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.5], [0.25]]))  # class 0: 0.75
    assert acm.matrix()[1, 0] == pytest.approx(0.5 / (0.75 + 3), abs=1e-15)
    acm.begin(1)
    acm.update(torch.tensor([[1.0]]), torch.tensor([[0.5, 1.0]]))
    assert acm.matrix()[2, 0] == pytest.approx(0.5 / (0.5 + 0.75 + 3), abs=1e-15)
    assert acm.matrix()[2, 1] == pytest.approx(1.0 / (1.0 + 1), abs=1e-15)
    assert acm.matrix()[0, 2] == 0.5  # R is not touched


def test_nothing_flows_into_the_statistics():
    soft = torch.rand(3, 1, requires_grad=True)
    acm = AugmentedCorrelationMatrix()
    acm.begin(1)
    acm.begin(1)
    acm.update(torch.ones(3, 1), soft)
    assert not acm.matrix().requires_grad


def test_update_leaves_its_inputs_as_they_are():
    targets, soft = random_stream(3, [2, 2], 9)[1]
    acm = feed(AugmentedCorrelationMatrix(), random_stream(3, [2], 9))
    acm.begin(2)
    kept = targets.clone(), soft.clone()
    acm.update(targets, soft)
    assert torch.equal(targets, kept[0])
    assert torch.equal(soft, kept[1])


def test_state_resumes_in_the_middle_of_an_experience(tmp_path):
    stream = random_stream(4, [2, 3, 2], 20)
    whole = feed(AugmentedCorrelationMatrix(q_counts="stream"), stream)
    half = feed(AugmentedCorrelationMatrix(q_counts="stream"), stream[:2])
    half.begin(2)
    half.update(stream[2][0][:8], stream[2][1][:8])
    torch.save(half.state_dict(), tmp_path / "acm.pt")
    resumed = AugmentedCorrelationMatrix(q_counts="stream")
    resumed.load_state_dict(torch.load(tmp_path / "acm.pt", weights_only=True))
    resumed.update(stream[2][0][8:], stream[2][1][8:])
    assert resumed.block_sizes == (2, 3, 2)
    torch.testing.assert_close(resumed.matrix(), whole.matrix(), rtol=0, atol=1e-12)


def test_loaded_state_does_not_share_memory():
    acm = feed(AugmentedCorrelationMatrix(), random_stream(5, [2], 5))
    state = acm.state_dict()
    other = AugmentedCorrelationMatrix()
    other.load_state_dict(state)
    before = copy.deepcopy(acm.matrix())
    other.update(torch.ones(4, 2))
    assert torch.equal(acm.matrix(), before)


def test_state_with_missing_entries_is_rejected():
    with pytest.raises(ValueError, match="'cross'"):
        AugmentedCorrelationMatrix().load_state_dict({"old": torch.zeros(0, 0)})


def test_update_rejects_what_does_not_fit():
    acm = AugmentedCorrelationMatrix()
    with pytest.raises(RuntimeError, match="begin"):
        acm.update(torch.ones(1, 1))
    acm.begin(2)
    acm.begin(3)
    with pytest.raises(ValueError, match=r"must be \(4, 3\), .* not \(4, 2\)"):
        acm.update(torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        acm.update(torch.ones(4, 3), torch.ones(4, 3))
    with pytest.raises(ValueError, match="-1"):
        acm.begin(-1)


def test_start_values_decide_on_relations_of_saturated_soft_labels():
    """One new class on every image; the teacher's softmax leaves 5e-12 for the old class in all."""
    found = []
    for start in (0.0, 1e-10):
        acm = AugmentedCorrelationMatrix(soft_start=start)
        acm.begin(1)
        acm.update(torch.ones(3, 1))
        acm.begin(1)
        acm.update(torch.ones(2, 1), torch.full((2, 1), 2.5e-12, dtype=torch.float64))
        found.append(acm.matrix()[1, 0].item() / 2)  # Q, halved as in the authors' program
    assert found == pytest.approx([0.5, 5e-12 / 1.05e-10 / 2])  # about 0.024


@pytest.mark.parametrize("batch", [3, 20])
def test_start_values_are_added_to_every_denominator_once(batch):
    stream = random_stream(3, [2, 3], 20)
    plain = feed(AugmentedCorrelationMatrix(), stream, batch)
    started = feed(AugmentedCorrelationMatrix(hard_start=0.5, soft_start=2.0), stream, batch)
    (first, _), (second, soft) = stream
    first, second = first.double(), second.double()
    off = ~torch.eye(2, dtype=torch.bool)
    expected = first.T @ first / (first.sum(0) + 0.5)
    torch.testing.assert_close(started.matrix()[:2, :2][off], expected[off])
    cross = soft.T @ second
    torch.testing.assert_close(started.matrix()[:2, 2:], cross / (second.sum(0) + 0.5))
    torch.testing.assert_close(started.matrix()[2:, :2], cross.T / (soft.sum(0) + 2))
    assert torch.equal(started.matrix().diagonal(), torch.ones(5, dtype=torch.float64))
    for name in ("hard", "cross", "soft"):  # the sums themselves do not change
        assert torch.equal(started.state_dict()[name], plain.state_dict()[name])
