"""Base class of the models: stacks of blocks between inputs and an output layer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from headwise.attention.attention import Attention
from headwise.attention.place import Site
from headwise.config.fields import check_bounds
from headwise.config.schema import ModelConfig
from headwise.data.batch import Batch
from headwise.errors import ConfigError, refuse, require
from headwise.losses.loss import Loss, LossSum
from headwise.model.inputs import Input
from headwise.model.parts import Parts
from headwise.model.stack import Stack
from headwise.ops.linear import Linear

SHARING = ("all", "decoder", "none")
_LOCK = threading.Lock()  # of `_HELD`
_HELD: Counter[nn.Module] = Counter()  # of modules in training mode, the contexts of `evaluating`


def check_model_config(config: ModelConfig, joint_vocab: bool, parts: Parts) -> None:
    """Raise ConfigError, naming the key, for sizes and names that are not supported."""
    check_bounds(config, "model.")
    divides = config.d_model % config.n_heads == 0
    require(
        divides, "model.n_heads", f"a divisor of model.d_model={config.d_model}", config.n_heads
    )
    qk_width, whole = config.qk_width, f"a multiple of model.n_heads={config.n_heads}"
    fits = qk_width is None or qk_width % config.n_heads == 0
    require(fits, "model.qk_width", whole, qk_width)
    if config.share_embeddings not in SHARING:
        raise refuse("model.share_embeddings", config.share_embeddings, SHARING)
    if config.share_embeddings == "all" and not joint_vocab:
        raise ConfigError(
            "model.share_embeddings must be decoder or none, got 'all': source and target have "
            "vocabularies of their own, and one table needs one"
        )
    parts.init.check(config)


class Output(Linear):
    """Logits over a vocabulary, or over other classes.

    Args:
        width: of states.
        n_classes: entries of the vocabulary.
        bias: whether each class has one.
    """

    def __init__(self, width: int, n_classes: int, bias: bool = False) -> None:
        super().__init__(width, n_classes, bias=bias)

    def loss(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> LossSum:
        """Return sums of loss and measure of states; logits are computed in chunks."""
        return loss.from_states(states_RD, self.weight, targets_R)

    def rows(self, states_RD: Tensor, targets_R: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Return loss and measure of each state, (R,) each, for evaluation."""
        return loss.rows_from_states(states_RD, self.weight, targets_R)


class Model(nn.Module):
    """The interface of a model for training, analysis and tables.

    Attributes:
        sites: its attention sites.
        columns: column of a batch -> the module that embeds it.
        states: `inputs` -> states (B, N, D) that `output` maps to logits, for the column that the
            queries of the last site come from.
        output: from states to logits.
        new_weights: beginnings of names of weights that another run's model need not have.
    """

    new_weights: tuple[str, ...] = ()
    sites: tuple[Site, ...]
    columns: dict[str, Input]
    states: Callable[..., Tensor]
    output: Output

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the keyword arguments of `states` and `forward` for a batch."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return logits (B, N, V) of every position."""
        logits_BNV: Tensor = self.output(self.states(*inputs, **named))
        return logits_BNV

    def n_prefix(self, column: str) -> int:
        """Return the number of CLS tokens before a column."""
        return self.columns[column].n_prefix

    @property
    def stacks(self) -> list[Stack]:
        """The stacks; the last one computes the states."""
        return [stack for stack in self.children() if isinstance(stack, Stack)]

    def side_modules(self, side: str) -> Iterator[nn.Module]:
        """Yield the modules of the encoder or decoder."""
        for stack in self.stacks:
            if stack.sites[0].side == side:
                yield from (self.columns[stack.sites[0].queries], stack)
                if stack is self.stacks[-1]:
                    yield self.output

    def attentions(self) -> Iterator[tuple[str, int, Attention]]:
        """Yield every attention with its site and layer (from 1)."""
        for stack in self.stacks:
            yield from stack.attentions()


def n_parameters(model: nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and restore the mode of each module afterwards.

    Contexts of models that share modules may overlap, also in several threads: the last to end
    restores the mode that a module had before the first.
    """
    with _LOCK:
        held = [module for module in model.modules() if module.training or module in _HELD]
        _HELD.update(held)
        if held:  # setting modes takes longer
            model.eval()
    try:
        yield
    finally:
        with _LOCK:
            _HELD.subtract(held)
            for module in held:
                if not _HELD[module]:
                    del _HELD[module]
                    module.training = True
