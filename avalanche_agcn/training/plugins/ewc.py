"""Elastic weight consolidation (Kirkpatrick et al., 2017)."""

from collections.abc import Mapping
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_agcn.benchmarks.experience import check_whole_experience
from avalanche_agcn.checks import check_range
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.distributed import own_share
from avalanche_agcn.training.gradients import QuadraticPenalty, fisher_diagonal
from avalanche_agcn.training.loader import load_batches

Named = dict[str, Tensor]


class EWCPlugin(SupervisedPlugin, supports_distributed=True):  # type: ignore[call-arg]
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
        chosen, n_workers = dataset.subset(own_share(order).tolist()), kwargs.get("num_workers", 0)
        images = load_batches(strategy, chosen, batch_size=1, num_workers=n_workers)
        model = unwrap(strategy.model)
        fisher = fisher_diagonal(model, strategy._criterion, images, reduce=True)
        self.add(fisher, dict(model.named_parameters()))

    def penalty(self, model: nn.Module) -> Tensor:
        """Σ_t Σ_i F_ti (θ_i − θ*_ti)²."""
        parameters = dict(model.named_parameters())
        self._follow(parameters)
        names = self.fisher
        fisher, centre = [self.fisher[name] for name in names], [self.centre[name] for name in names]
        penalty = QuadraticPenalty.apply(fisher, centre, *(parameters[name] for name in names))
        return penalty + self.offset  # type: ignore[no-any-return]

    @torch.no_grad()
    def add(self, fisher: Named, parameters: Named) -> None:
        """Add the penalty of an experience."""
        self._follow(parameters)
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
        self.fisher, self.centre = {}, {}
        for part, own in (("fisher.", self.fisher), ("centre.", self.centre)):
            own |= {key.removeprefix(part): t.clone() for key, t in state.items() if key.startswith(part)}
        self.offset = state["offset"].clone()
        self._generator.set_state(state["generator"])

    def _follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Move to the parameters' device, and add rows for classes that were added to the parameters."""
        self.offset = self.offset.to(next(iter(parameters.values())).device)
        for name, fisher in self.fisher.items():
            parameter = parameters[name].detach()
            if fisher.device != parameter.device or fisher.shape != parameter.shape:
                added = parameter[len(fisher) :]
                self.fisher[name] = torch.cat([fisher.to(parameter.device), torch.zeros_like(added)])
                self.centre[name] = torch.cat([self.centre[name].to(parameter.device), added])
