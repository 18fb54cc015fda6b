"""The Augmented Correlation Matrix (ACM): label relations counted batch by batch (Eq. 1 to 4).

With y the hard labels of the new classes of an image (``targets_new``) and ẑ the soft labels of its old
classes, the teacher's probabilities (``soft_old``), entry [i, j] of A is P(class i | class j).
"""

from typing import Literal

import torch
from torch import Tensor

from avalanche_agcn.checks import check_choice, check_range, check_shape
from avalanche_agcn.training.statistics.sums import ClassBlocks, in_float64

QCounts = Literal["experience", "stream"]


class AugmentedCorrelationMatrix(ClassBlocks):
    """Conditional probabilities between all classes seen so far, from sums in float64.

    Args:
        q_counts: images that Σ ẑ_i, the denominator of Q, sums over. ``"experience"`` is Eq. 4: those of the
            current experience, which overestimates Q. ``"stream"`` adds the counts of class i in earlier
            experiences: hard labels in its own experience, soft labels since.
        hard_start: initial value of the counts N_j.
        soft_start: initial value of the sums Σ ẑ_i.

    Example:
        >>> acm = AugmentedCorrelationMatrix()
        >>> acm.begin(2)
        >>> acm.update(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
        >>> acm.begin(1)
        >>> acm.update(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.8, 0.0], [0.2, 0.0]]))
        >>> acm.matrix()  # B: 1 / 1 and 1 / 2, R: 0.8 / 1, Q: 0.8 / (0.8 + 0.2)
        tensor([[1.0000, 1.0000, 0.8000],
                [0.5000, 1.0000, 0.0000],
                [0.8000, 0.0000, 1.0000]], dtype=torch.float64)
    """

    _tensors = ("_old", "_earlier", "_hard", "_cross", "_soft")

    def __init__(
        self, *, q_counts: QCounts = "experience", hard_start: float = 0.0, soft_start: float = 0.0
    ) -> None:
        check_choice("q_counts", q_counts, QCounts)
        check_range("hard_start", hard_start, least=0)
        check_range("soft_start", soft_start, least=0)
        super().__init__()
        self.q_counts = q_counts
        self.hard_start, self.soft_start = hard_start, soft_start
        self._old = torch.zeros(0, 0, dtype=torch.float64)  # A^{t-1}, [n_old, n_old]
        self._earlier = self._old.new_zeros(0)  # counts of old classes in earlier experiences, [n_old]
        self.restart()

    def begin(self, n_new: int) -> None:
        """Open an experience with ``n_new`` new classes; relations among earlier classes are frozen."""
        check_range("n_new", n_new, least=0)
        self._old = self.matrix()  # before the open sums, which it reads, are emptied
        self._earlier = torch.cat([self._earlier + self._soft, self._hard.diagonal()])
        self._sizes.append(n_new)
        self.restart()

    def restart(self) -> None:
        """Discard the batches of the open experience."""
        n_old = self.n_old
        n_new = self.n_seen - n_old
        self._hard = self._old.new_zeros(n_new, n_new)  # N_ij = Σ y_i y_j; its diagonal is N_j
        self._cross = self._old.new_zeros(n_old, n_new)  # Σ ẑ_i y_j
        self._soft = self._old.new_zeros(n_old)  # Σ ẑ_i

    def update(self, targets_new: Tensor, soft_old: Tensor | None = None, *, reduce: bool = False) -> None:
        """Count a batch.

        A row with a NaN among its new classes is skipped: it is an image of another experience, such as a
        replayed one, and does not show how often new classes appear.

        Args:
            targets_new: 0 or 1 for the classes of the open experience, ``[B, n_new]``.
            soft_old: probabilities of the old classes, ``[B, n_old]``. None counts as zeros: without a
                teacher, new and old classes have no relations.
            reduce: whether to add up the batches of all processes, each of which must call this.
        """
        self._check_open()
        check_shape("targets_new", targets_new, ("images", self._sizes[-1]))
        hard = in_float64(targets_new.detach())  # y
        self._move_to(hard.device)
        counted = ~hard.isnan().any(dim=1, keepdim=True)  # [B, 1]
        hard = hard.where(counted, 0.0)
        if soft_old is None:
            soft_old = hard.new_zeros(len(hard), self.n_old)
        check_shape("soft_old", soft_old, (len(hard), self.n_old), ", one column per old class")
        soft = soft_old.detach().to(hard).where(counted, 0.0)  # ẑ
        self._add(hard=hard.T @ hard, cross=soft.T @ hard, soft=soft.sum(dim=0), reduce=reduce)

    def matrix(self) -> Tensor:
        """Conditional probabilities ``[n_seen, n_seen]``, float64, unit diagonal (Eq. 1).

        A class without hard or soft labels so far has no relations: zeros beside its 1 on the diagonal.
        """
        count_new = self._hard.diagonal() + self.hard_start  # N_j
        count_old = self._soft + self._earlier if self.q_counts == "stream" else self._soft
        count_old = count_old + self.soft_start  # Σ ẑ_i, with "stream" and earlier counts
        new_new = _divide(self._hard, count_new).fill_diagonal_(1.0)  # B, Eq. 2
        old_new = _divide(self._cross, count_new)  # R, Eq. 3
        new_old = _divide(self._cross.T, count_old)  # Q, Eq. 4, where R_ij N_j is Σ ẑ_i y_j
        return torch.cat([torch.cat([self._old, old_new], 1), torch.cat([new_old, new_new], 1)])  # A, Eq. 1


def _divide(counts: Tensor, totals: Tensor) -> Tensor:
    """Divide each column by its total; a column whose total is 0 becomes 0."""
    return torch.where(totals > 0, counts / totals, 0.0)
