"""Elastic weight consolidation (Kirkpatrick et al., 2017)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from avalanche_agcn.benchmarks.experience import check_whole_experience
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import evaluation_mode, unwrap
from avalanche_agcn.training.distributed import own_share, sum_over_processes
from avalanche_agcn.training.loader import load_batches
from avalanche_agcn.training.plugin import MultiLabelPlugin
from avalanche_agcn.training.template import MultiLabelTemplate, Plugins

EWC_LAMBDA = 1e3  # no source gives one for multi-label images: ours, from the embedded benchmark
Named = dict[str, Tensor]


class EWC(MultiLabelTemplate):
    """Elastic weight consolidation (Kirkpatrick et al., 2017): penalises changes of important parameters.

    For the arguments see `EWCPlugin`; its seed, 0 if None, is also that of the stream.
    """

    def __init__(
        self,
        *,
        ewc_lambda: float = EWC_LAMBDA,
        fisher_images: int | None = None,
        seed: int | None = None,
        plugins: Plugins = None,
        **base_kwargs: Any,
    ) -> None:
        self.ewc = EWCPlugin(ewc_lambda=ewc_lambda, fisher_images=fisher_images, seed=seed or 0)
        super().__init__(plugins=[*(plugins or []), self.ewc], seed=seed, **base_kwargs)


class EWCPlugin(MultiLabelPlugin):
    """Adds λ/2 Σ_t Σ_i F_ti (θ_i − θ*_ti)² over the earlier experiences t.

    θ*_t are the parameters after experience t and F_t is the diagonal of the empirical Fisher information
    there (`fisher_diagonal`): the mean over the images of the experience, without augmentation, of the
    squared gradient of an image's own loss. Avalanche's ``EWCPlugin`` squares the gradient of a batch,
    which is smaller by up to the size of the batch. A sum of quadratic penalties is again quadratic, so only
    its curvature F and its centre are stored.

    λ is ``ewc_lambda``. F is averaged over ``fisher_images`` images per experience, drawn with the ``seed``;
    all if None. Each costs a step with a batch of one.
    """

    def __init__(self, *, ewc_lambda: float, fisher_images: int | None = None, seed: int = 0) -> None:
        super().__init__()
        check_range("ewc_lambda", ewc_lambda, least=0)
        check_range("fisher_images", fisher_images, least=1)
        self.ewc_lambda, self.fisher_images = ewc_lambda, fisher_images
        self.fisher: Named = {}  # Σ_t F_t
        self.centre: Named = {}  # Σ_t F_t θ*_t / Σ_t F_t
        self.offset = torch.zeros(())  # the penalty at the centre
        self._vectors: tuple[Tensor, Tensor] | None = None  # F and centre, each in one vector
        self._generator = torch.Generator().manual_seed(seed)

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Reject parts of experiences: each would add its own quadratic penalty."""
        check_whole_experience(strategy.experience, "EWC")

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the penalty."""
        if self.fisher:
            strategy.loss = strategy.loss + self.ewc_lambda / 2 * self.penalty(unwrap(strategy.model))

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Measure the experience's Fisher information and add its penalty."""
        dataset = strategy.experience.dataset.eval()
        order = torch.randperm(len(dataset), generator=self._generator)[: self.fisher_images]
        chosen = dataset.subset(own_share(order).tolist())
        images = load_batches(strategy, chosen, batch_size=1, num_workers=kwargs.get("num_workers", 0))
        model = unwrap(strategy.model)
        fisher = fisher_diagonal(model, strategy._criterion, images, reduce=True)
        self.add(fisher, dict(model.named_parameters()))

    def penalty(self, model: nn.Module) -> Tensor:
        """Σ_t Σ_i F_ti (θ_i − θ*_ti)²."""
        parameters = dict(model.named_parameters())
        self._follow(parameters)
        if self._vectors is None:
            self._vectors = _as_vector(self.fisher), _as_vector(self.centre)
        fisher, centre = self._vectors
        current = _as_vector({name: parameters[name] for name in self.fisher})
        return QuadraticPenalty.apply(fisher, centre, current) + self.offset  # type: ignore[no-any-return]

    @torch.no_grad()
    def add(self, fisher: Named, parameters: Named) -> None:
        """Add the penalty of an experience."""
        self._follow(parameters)
        self._vectors = None
        for name, new in fisher.items():
            here = parameters[name].detach()
            if name not in self.fisher:
                self.fisher[name], self.centre[name] = new.clone(), here.clone()
                continue
            total = self.fisher[name] + new
            share = torch.where(total > 0, new / total, 0.0)  # of the new penalty in the sum
            distance = here - self.centre[name]
            self.offset = self.offset + (self.fisher[name] * share * distance.square()).sum()
            # Exact for a share of 1: a rounding error would be a gradient, and Adam would make a step of it.
            self.centre[name] = torch.lerp(self.centre[name], here, share)
            self.fisher[name] = total

    def state_dict(self) -> Named:
        """Fisher information, centre and offset."""
        state = {f"fisher.{name}": tensor for name, tensor in self.fisher.items()}
        state |= {f"centre.{name}": tensor for name, tensor in self.centre.items()}
        return state | {"offset": self.offset, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Named) -> None:
        """Restore the penalty."""
        self.fisher, self.centre, self._vectors = {}, {}, None
        for key, tensor in state.items():
            part, _, name = key.partition(".")
            if part == "fisher":
                self.fisher[name] = tensor.clone()
            elif part == "centre":
                self.centre[name] = tensor.clone()
        self.offset = state["offset"].clone()
        self._generator.set_state(state["generator"])

    def _follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Move to the parameters' device, and add rows for classes that were added to the parameters."""
        self.offset = self.offset.to(next(iter(parameters.values())).device)
        for name, fisher in self.fisher.items():
            parameter = parameters[name].detach()
            if fisher.device != parameter.device:
                self._vectors = None
                self.fisher[name] = fisher.to(parameter.device)
                self.centre[name] = self.centre[name].to(parameter.device)
            if fisher.shape != parameter.shape:
                self._vectors = None
                added = parameter[len(fisher) :]
                self.fisher[name] = torch.cat([self.fisher[name], torch.zeros_like(added)])
                self.centre[name] = torch.cat([self.centre[name], added])


def _as_vector(tensors: Named) -> Tensor:
    """All entries in one vector, so that a step needs few operations however many tensors there are."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def fisher_diagonal(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    images: Iterable[tuple[Tensor, Tensor]],
    *,
    reduce: bool = False,
) -> dict[str, Tensor]:
    """Mean squared gradient of each image's own loss in evaluation mode, by name of each trained parameter.

    ``images`` yields one image and its target at a time, ``[1, ...]`` and ``[1, n_classes]``; at least one.
    The model's gradients and modes do not change. With ``reduce``, the mean is over the images of all
    processes, each of which must call this.
    """
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    count = 0
    with evaluation_mode(model), torch.enable_grad():
        for x, y in images:
            count += 1
            loss = criterion(model(x), y)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total.addcmul_(gradient, gradient)
    if reduce:
        *sums, number = sum_over_processes(*sums, sums[0].new_tensor(count))
        count = int(number)
    return {name: total / count for name, total in zip(names, sums, strict=True)}


class QuadraticPenalty(Function):
    """Σ_i F_i (θ_i − c_i)² of vectors F, c and θ: ``apply(F, c, θ)``.

    Has its own backward pass, which needs fewer operations than autograd's.
    """

    @staticmethod
    def forward(ctx: Any, fisher: Tensor, centre: Tensor, parameters: Tensor) -> Tensor:
        """The sum, a scalar."""
        distance = parameters - centre
        ctx.save_for_backward(fisher, distance)
        return (distance * distance).mul_(fisher).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """2 F (θ − c)."""
        fisher, distance = ctx.saved_tensors
        return None, None, (2 * gradient * fisher).mul_(distance)
