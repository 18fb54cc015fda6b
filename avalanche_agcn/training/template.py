"""Base of all strategies of this package: precision, loaders, and several processes that train as one."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import torch
from avalanche.core import BasePlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_agcn.benchmarks.experience import check_strategy, origin_of
from avalanche_agcn.checks import check_choice, check_range
from avalanche_agcn.evaluation import multilabel_evaluator
from avalanche_agcn.models.forward import unwrap
from avalanche_agcn.training.distributed import global_means, is_distributed, mean_over_processes, share, wrap
from avalanche_agcn.training.loader import is_padding, make_eval_loader, make_train_loader
from avalanche_agcn.training.losses import PartialBCEWithLogitsLoss
from avalanche_agcn.training.memory import find_memory

Plugins = Sequence[BasePlugin] | None


class MultiLabelTemplate(SupervisedTemplate):
    """Avalanche's supervised template with defaults for multi-hot targets; base of all strategies.

    In a process group of `torch.distributed` (`process_group`) several processes train as one: each global
    batch is divided among them, losses are means over all of it, and every image is evaluated once. The model
    is in `DistributedDataParallel` while an experience is trained on; a wrapper of the caller stays.

    Args:
        model: network from images to logits of the classes seen so far.
        criterion: loss of logits and targets; `PartialBCEWithLogitsLoss` if None.
        train_mb_size: images per step, over all processes.
        train_epochs: passes over an experience; 1 in the online setting of the paper.
        eval_mb_size: images per batch in evaluation; as in training if None.
        plugins: further plugins; the list is not changed.
        evaluator: metrics and loggers, or a function that makes them; `multilabel_evaluator` if None. For no
            metrics pass ``EvaluationPlugin()``.
        amp: half precision of the forward pass, ``torch.bfloat16``, or ``torch.float16``, whose gradients are
            scaled; full precision if None.
        clip_grad_norm: largest norm of the gradient, or None.
        reset_optimizer_state: whether to reset the optimizer when an experience begins, as the authors'
            program does (a new Adam per task), but not at each part of one in an online stream.
        seed: seed of the order of images and of their augmentation, 0 or more. If None, it is drawn from
            torch's generator at the first `train`.
        base_kwargs: for Avalanche's ``SupervisedTemplate``, such as ``eval_every``.
    """

    model: nn.Module
    loss: Tensor
    trains_network = True  # whether gradients change the model's weights

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        train_mb_size: int = 8,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Plugins = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] | None = None,
        amp: torch.dtype | None = None,
        clip_grad_norm: float | None = None,
        reset_optimizer_state: bool = True,
        seed: int | None = None,
        **base_kwargs: Any,
    ) -> None:
        check_choice("amp", amp, [None, torch.bfloat16, torch.float16])
        check_range("clip_grad_norm", clip_grad_norm, above=0)
        check_range("seed", seed, least=0)
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=PartialBCEWithLogitsLoss() if criterion is None else criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=multilabel_evaluator if evaluator is None else evaluator,
            **base_kwargs,
        )
        self.amp, self.clip_grad_norm = amp, clip_grad_norm
        self.reset_optimizer_state, self.seed = reset_optimizer_state, seed
        self.is_padding = False  # whether this process has no image in the step, and its batch does not count
        self._given_model: nn.Module | None = None  # while it is wrapped
        self.piece_of: int | None = None  # number of the experience that the last piece was cut from
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=amp is torch.float16)

    def autocast(self) -> AbstractContextManager:
        """The precision of forward passes, also of those that plugins make."""
        return torch.autocast(self.device.type, dtype=self.amp, enabled=self.amp is not None)

    def make_train_dataloader(self, *args: Any, **kwargs: Any) -> None:
        """Make the loader of the experience, with the memory of a plugin if there is one."""
        loader: Any = make_train_loader(self, memory=find_memory(self), **kwargs)
        self.dataloader = loader
        self.seed = loader.batch_sampler.seed  # drawn if it was None

    def make_eval_dataloader(self, num_workers: int = 0, **kwargs: Any) -> None:
        """Make the loader of an evaluated experience; each of n processes gets every n-th image."""
        if is_distributed():  # Avalanche's would repeat images until every process has equally many
            self.dataloader = make_eval_loader(self, num_workers=num_workers)
        else:
            super().make_eval_dataloader(num_workers=num_workers, **kwargs)

    def forward(self) -> Tensor:
        """Return the logits of the batch."""
        with self.autocast():
            return super().forward()

    def criterion(self) -> Tensor:
        """Loss of the batch; in training, the mean over processes is that of the global batch."""
        if not self.is_training:
            return super().criterion()
        with global_means(padding=self.is_padding):
            return super().criterion()

    def backward(self) -> None:
        """Compute gradients, scaled if in float16; then the loss becomes that of the global batch."""
        if not self.trains_network:
            return
        self.scaler.scale(self.loss).backward(retain_graph=self.retain_graph)
        if is_distributed():
            self.loss = mean_over_processes(self.loss)[0]

    def optimizer_step(self) -> None:
        """Clip and step."""
        if not self.trains_network:
            return
        if self.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def check_model_and_optimizer(self, reset_optimizer_state: bool | None = None, **kwargs: Any) -> None:
        """Reset the optimizer; ``train(reset_optimizer_state=…)`` takes precedence."""
        self._unwrap_model()  # if an experience was interrupted
        origin = origin_of(self.experience)
        piece_of = None if origin is self.experience else origin.current_experience
        continues = piece_of is not None and piece_of == self.piece_of
        continues = continues and not getattr(self.experience, "is_first_subexp", False)
        if reset_optimizer_state is None:
            reset_optimizer_state = self.reset_optimizer_state and not continues
        self.piece_of = piece_of
        super().check_model_and_optimizer(reset_optimizer_state=reset_optimizer_state, **kwargs)
        if self.trains_network:
            self._given_model = self.model
            self.model = wrap(self.model)

    def _before_training(self, **kwargs: Any) -> None:
        share(chain(unwrap(self.model).parameters(), unwrap(self.model).buffers()))
        super()._before_training(**kwargs)

    def _before_training_exp(self, **kwargs: Any) -> None:
        check_strategy(self)
        self._check_auxiliary_head()
        self._stop_training = False  # stop_training() in the last epoch would also stop this experience
        super()._before_training_exp(**kwargs)

    def _after_training_exp(self, **kwargs: Any) -> None:
        share(unwrap(self.model).buffers())  # batch normalisation has seen a process's own images only
        super()._after_training_exp(**kwargs)
        self._unwrap_model()

    def _before_eval(self, **kwargs: Any) -> None:
        check_strategy(self)
        share(unwrap(self.model).buffers())  # it may be an evaluation between two steps
        super()._before_eval(**kwargs)

    def _check_auxiliary_head(self) -> None:
        """Reject a trainable network that only a `DecoupledTrainingPlugin` would train, without it."""
        model = unwrap(self.model)
        if not self.trains_network or getattr(model, "auxiliary", None) is None:
            return
        can_learn = any(parameter.requires_grad for parameter in model.backbone.parameters())
        if can_learn and not any(getattr(plugin, "trains_auxiliary", False) for plugin in self.plugins):
            raise ValueError(
                f"The {type(model).__name__} was made with decoupled=True, so only its auxiliary head trains "
                "the network, but no plugin trains that head: add a DecoupledTrainingPlugin, or make the "
                "model without decoupled=True."
            )

    def _unwrap_model(self) -> None:
        """Take the model out of the wrapper that it was given for training."""
        if self._given_model is not None:
            self.model, self._given_model = self._given_model, None

    def _unpack_minibatch(self) -> None:
        self.is_padding = self.is_training and is_padding(self.mbatch)
        super()._unpack_minibatch()

    def _before_backward(self, **kwargs: Any) -> None:
        with global_means(padding=self.is_padding):  # plugins add their losses here
            super()._before_backward(**kwargs)
