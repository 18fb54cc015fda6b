import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_agcn.agcn.correlation import AugmentedCorrelationMatrix

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


def feed(stream, batch=7, **settings):
    acm = AugmentedCorrelationMatrix(**settings)
    for targets, soft in stream:
        acm.begin(targets.shape[1])
        for rows in torch.arange(len(targets)).split(batch):
            acm.update(targets[rows], soft[rows])
    return acm


def begun(*sizes):
    """A matrix whose experiences have no images."""
    return feed([(torch.zeros(0, size), torch.zeros(0, sum(sizes[:t]))) for t, size in enumerate(sizes)])


def counted_directly(stream, q_counts, hard_start, soft_start):
    """Eq. 1 to 4, entry by entry, from the whole stream at once."""
    n = sum(targets.shape[1] for targets, _ in stream)
    expected = torch.eye(n, dtype=torch.float64)
    earlier, n_old = [0.0] * n, 0  # counts of each class in earlier experiences

    def ratio(numerator, denominator):
        return numerator / denominator if denominator > 0 else 0.0

    for targets, soft in stream:
        y, n_new = targets.double(), targets.shape[1]
        shown = [sum(soft[:, i].tolist()) for i in range(n_old)]
        for j in range(n_new):
            count = sum(y[:, j].tolist()) + hard_start
            for i in range(n_new):
                if i != j:
                    expected[n_old + i, n_old + j] = ratio(sum((y[:, i] * y[:, j]).tolist()), count)
            for i in range(n_old):
                both = sum((soft[:, i] * y[:, j]).tolist())
                expected[i, n_old + j] = ratio(both, count)  # R, Eq. 3
                before = earlier[i] if q_counts == "stream" else 0.0
                expected[n_old + j, i] = ratio(both, shown[i] + before + soft_start)  # Q, Eq. 4
        for i in range(n_old):
            earlier[i] += shown[i]
        for j in range(n_new):
            earlier[n_old + j] = sum(y[:, j].tolist())
        n_old += n_new
    return expected


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(0, 3), max_size=4),
    n_images=st.integers(0, 12),
    batch=st.integers(1, 12),
    hard=st.booleans(),
    q_counts=st.sampled_from(["experience", "stream"]),
    starts=st.sampled_from([(0.0, 0.0), (0.5, 2.0)]),
)
def test_matrix_equals_direct_count_in_any_batches(seed, sizes, n_images, batch, hard, q_counts, starts):
    stream = random_stream(seed, sizes, n_images, hard)
    copies = [(targets.clone(), soft.clone()) for targets, soft in stream]
    acm = feed(stream, batch, q_counts=q_counts, hard_start=starts[0], soft_start=starts[1])
    torch.testing.assert_close(acm.matrix(), counted_directly(stream, q_counts, *starts), rtol=0, atol=1e-12)
    assert acm.block_sizes == tuple(sizes)
    for batch_of, copy in zip(stream, copies):  # inputs are not changed
        assert all(map(torch.equal, batch_of, copy))


def test_oracle_teacher_gives_the_true_probabilities_of_each_experiences_images():
    labels = (torch.rand(300, 5, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    labels[:, 4] *= labels[:, 0]  # a relation worth finding
    first, second = labels.split(150)
    matrix = feed([(first[:, :2], first[:, :0]), (second[:, 2:], second[:, :2])]).matrix()

    def truth(images):
        counts = images.double().T @ images.double()
        return counts / counts.diagonal()

    expected = truth(second)
    expected[:2, :2] = truth(first)[:2, :2]
    torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-12)
    assert matrix[0, 4] == 1


def test_sums_hold_their_precision_over_many_float32_batches_and_have_no_gradient():
    acm, soft = begun(1, 1), torch.full((1, 1), 0.1, requires_grad=True)
    for _ in range(5000):
        acm.update(torch.ones(1, 1), soft)
    expected = torch.tensor(0.1).double()  # float32's 0.1, to float64's precision
    torch.testing.assert_close(acm.matrix()[0, 1], expected, rtol=1e-12, atol=0)
    assert not acm.matrix().requires_grad


def test_rows_unlabelled_for_a_new_class_are_skipped():
    targets, soft = random_stream(2, [1, 3], 20)[1]
    acm, cleaned = begun(1, 3), begun(1, 3)
    kept = [i for i in range(20) if i not in (5, 9)]
    cleaned.update(targets[kept], soft[kept])
    targets[5], targets[9] = NAN, torch.tensor([1.0, NAN, 1.0])
    acm.update(targets, soft)
    torch.testing.assert_close(acm.matrix(), cleaned.matrix(), rtol=0, atol=1e-12)


def test_state_resumes_in_the_middle_of_an_experience_and_shares_no_memory(tmp_path):
    stream = random_stream(4, [2, 3, 2], 20)
    half = feed([*stream[:2], tuple(part[:8] for part in stream[2])], q_counts="stream")
    torch.save(half.state_dict(), tmp_path / "acm.pt")
    before, state = half.matrix(), torch.load(tmp_path / "acm.pt", weights_only=True)
    for source in (state, half.state_dict()):
        resumed = AugmentedCorrelationMatrix(q_counts="stream")
        resumed.load_state_dict(source)
        resumed.update(*(part[8:] for part in stream[2]))
        assert resumed.block_sizes == (2, 3, 2)
        whole = feed(stream, q_counts="stream").matrix()
        torch.testing.assert_close(resumed.matrix(), whole, rtol=0, atol=1e-12)
    assert torch.equal(half.matrix(), before)


def test_wrong_shapes_and_missing_calls_are_rejected():
    acm = AugmentedCorrelationMatrix()
    with pytest.raises(RuntimeError, match="begin"):
        acm.update(torch.ones(1, 1))
    with pytest.raises(ValueError, match="'cross'"):
        acm.load_state_dict({"old": torch.zeros(0, 0)})
    acm = begun(2, 3)
    for shape in ((4, 2), (3,), ()):
        with pytest.raises(ValueError, match=r"targets_new must be \[images, 3\], not \["):
            acm.update(torch.ones(shape))
    with pytest.raises(ValueError, match=r"soft_old must be \[4, 2\], one column per old class, not"):
        acm.update(torch.ones(4, 3), torch.ones(4, 3))
    with pytest.raises(ValueError, match="n_new must be at least 0, not -1"):
        acm.begin(-1)
