"""A translation model made ready for inference: a step without the modules around its operations.

A step of one sentence has so few rows that looking up modules, checking tensors and packing weights
take longer than its arithmetic. A `PreparedModel` does that once for all steps:
    weights are in the dtype of the products, those of query, key and value joined
    α of every head is read
    keys and values of all layers are one cache, which one call reorders
    one product gives the keys and values of the memory for all layers
Results equal those of `Transformer.decode` up to rounding.

Axes: R rows (live hypotheses of all sentences), N sentences, W rows of a sentence, S source
positions, K positions so far, D width, H heads, C heads of all layers (keys, then values), E head
width, V target vocabulary.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from headwise.attention.alpha_entmax import AlphaEntmax
from headwise.attention.attention import Attention, ScoreAttention
from headwise.attention.cache import KeyValueCache
from headwise.attention.entmax15 import Entmax15
from headwise.attention.mask import Mask
from headwise.attention.normaliser import FusedNormaliser, ScoreContext
from headwise.attention.softmax import Softmax
from headwise.attention.sparsemax import Sparsemax
from headwise.model.blocks import FeedForward, PostNorm, PreNorm
from headwise.model.family import Output
from headwise.model.stack import Block, Memory
from headwise.model.transformer import Transformer
from headwise.ops import dispatch
from headwise.ops.attention.cpu_few import context_of
from headwise.ops.family import beta_of
from headwise.ops.library import CPP
from headwise.ops.linear import Linear, PreparedLinear, has_hooks
from headwise.ops.visible import Visible

FAMILY = (AlphaEntmax, Entmax15, Softmax, Sparsemax)  # a subclass may compute other weights


def supports(model: Transformer, dtype: torch.dtype) -> bool:
    """Return whether `PreparedModel` supports the model, on a CPU with C++ kernels.

    Attention of the entmax family, with one α per head and weights alone: without a pattern, a
    scaling, gates, positions or recorders; with pre- or post-norm. All modules of the decoder are
    of the types that a configuration makes, and none has hooks: they would not be called.
    """
    kinds = {(p.dtype, p.device.type, p.is_inference()) for p in model.parameters()}
    if kinds != {(torch.float32, "cpu", False)} or dtype not in (torch.float32, torch.bfloat16):
        return False
    if type(model) is not Transformer or type(model.output) is not Output:
        return False
    modules = (*model.decoder.modules(), model.output)
    if dispatch.cpp_or_torch(model.output.weight).kernel != CPP or any(map(has_hooks, modules)):
        return False
    widths = {attention.place.head_dim for _, _, attention in model.decoder.attentions()}
    return all(map(_is_plain, model.decoder.blocks)) and len(widths) == 1


def _is_plain(block: Block) -> bool:
    if type(block) is not Block or type(block.feed_forward) is not FeedForward:
        return False
    residuals = (block.self_residual, block.cross_residual, block.feed_forward_residual)
    return (
        all(type(residual) in (PreNorm, PostNorm) for residual in residuals)
        and _has_plain_maps(block.feed_forward, "inner", "outer")
        and _has_only_weights(block.self_attention)
        and _has_only_weights(block.cross_attention)
    )


def _has_only_weights(attention: Attention | None) -> bool:
    if type(attention) is not ScoreAttention or attention.recorders:
        return False
    parts = (attention.pattern, attention.scaling, attention.gate, attention.positions)
    normaliser, place = attention.normaliser, attention.place
    if type(normaliser) not in FAMILY or normaliser.alpha_per_query:
        return False
    has_one_width = place.key_dim == place.head_dim
    is_plain = _has_plain_maps(attention, "query", "key", "value", "output")
    return has_one_width and is_plain and all(part is None for part in parts)


def _has_plain_maps(owner: nn.Module, *names: str) -> bool:
    """Return whether these are linear layers with a bias, without adapters or parametrisations."""
    maps = [getattr(owner, name) for name in names]
    return all(type(layer) is Linear and layer.bias is not None for layer in maps)


class PreparedModel:
    """The interface of a model for search, `headwise.decode.incremental.TranslationModel`.

    Its memory: joined weights, 3 D² + 2 D² a layer, in bfloat16 a copy of all weights; and, of maps
    of more than `MAX_FEW_ROWS` rows (the first such source or step), the weights once more in
    oneDNN's layout. It does not follow changes of parameters, so it is made anew for each search.

    Args:
        model: in evaluation mode, see `supports`.
        dtype: of the products: float32 or bfloat16.
    """

    shares_memory: ClassVar[bool] = True

    @torch.inference_mode(False)  # it is used in and outside inference mode
    @torch.no_grad()
    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._layers: list[_Layer] = []
        self._n_heads = n_crossed = 0  # C of the prefixes and of the memory, so far
        maps: list[nn.Linear] = []
        for block in model.decoder.blocks:
            own, cross = _heads_of(block)
            self._layers.append(_Layer(block, dtype, self._n_heads, n_crossed))
            self._n_heads += 2 * own.place.n_heads
            n_crossed += 2 * cross.place.n_heads
            maps += (cross.key, cross.value)
        self._width = own.place.head_dim
        shape = 1, self._n_heads, 1, self._width  # of a new position
        self._new_1C1E = torch.empty(shape, dtype=dtype, device="cpu")
        self._memory_heads = PreparedLinear(maps, dtype)
        self._output = PreparedLinear([model.output], dtype)

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        """See `Transformer.encode`."""
        return self.model.encode(source_BS, source_lengths_B)

    def make_cache(self) -> PreparedCache:
        """Return an empty cache for `decode`."""
        return PreparedCache()

    def decode(
        self, target_in_R1: Tensor, memory: Memory, cache: PreparedCache | None = None
    ) -> Tensor:
        """Return logits (R, 1, V) of the token after each of `target_in_R1`.

        Without a cache, as the model does.
        """
        if cache is None:
            return self.model.decode(target_in_R1, memory)
        with torch.autocast("cpu", enabled=False):  # the dtypes are already chosen
            if not cache.memory.is_complete:
                cache.memory.update(self._keys_and_values(memory.states_BSD))
            states_RD = self.model.target_embedding(target_in_R1, cache.prefixes.length)[:, 0]
            cache.prefixes.extend(self._new_1C1E.expand(len(states_RD), -1, -1, -1))
            (prefix_RCKE,), (memory_NCSE,) = cache.prefixes.content(), cache.memory.content()
            for layer in self._layers:
                states_RD = layer(states_RD, prefix_RCKE, memory_NCSE, memory.lengths_B)
            logits_RV = self._output(self.model.decoder.norm(states_RD))
        return logits_RV[:, None]

    def _keys_and_values(self, memory_NSD: Tensor) -> Tensor:
        """Return those of all layers (N, C, S, E)."""
        n_rows, n_source, width = memory_NSD.shape
        heads = self._memory_heads(memory_NSD.reshape(-1, width)).to(self.dtype)
        return heads.view(n_rows, n_source, -1, self._width).transpose(1, 2)


def _heads_of(block: Block) -> tuple[ScoreAttention, ScoreAttention]:
    own, cross = block.self_attention, block.cross_attention
    assert isinstance(own, ScoreAttention)
    assert isinstance(cross, ScoreAttention)
    return own, cross


class PreparedCache:
    """Keys and values of all layers and heads: (R, C, K, E) of the prefixes and (N, C, S, E)."""

    def __init__(self) -> None:
        self.prefixes, self.memory = KeyValueCache(static=False), KeyValueCache(static=True)
        self.reorder, self.reorder_memory = self.prefixes.reorder, self.memory.reorder


class _Layer:
    """A block of the decoder.

    Args:
        block: of a supported model.
        dtype: of the products.
        first, crossed: where its keys are among those of all layers, of prefixes and memory.
    """

    def __init__(self, block: Block, dtype: torch.dtype, first: int, crossed: int) -> None:
        own, cross = _heads_of(block)
        self._block = block
        self._own, self._cross = _Heads(own, first), _Heads(cross, crossed)
        self._qkv = PreparedLinear([own.query, own.key, own.value], dtype)
        self._own_output = PreparedLinear([own.output], dtype)
        self._query = PreparedLinear([cross.query], dtype)
        self._cross_output = PreparedLinear([cross.output], dtype)
        self._inner = PreparedLinear([block.feed_forward.inner], dtype)
        self._outer = PreparedLinear([block.feed_forward.outer], dtype)

    def __call__(
        self, states_RD: Tensor, prefix_RCKE: Tensor, memory_NCSE: Tensor, lengths_N: Tensor
    ) -> Tensor:
        """Return states (R, D); write keys and values of the last position."""
        block, own, cross = self._block, self._own, self._cross
        residual = block.self_residual
        new_RCE = self._qkv(residual.before(states_RD)).view(len(states_RD), -1, own.width)
        own_RCKE = own.part(prefix_RCKE)
        own_RCKE[:, :, -1] = new_RCE[:, own.n_heads :]
        context_RD = own.context(new_RCE[:, : own.n_heads, None], own_RCKE)
        states_RD = residual.after(states_RD, self._own_output(context_RD))
        residual = block.cross_residual
        memory_NCSE = cross.part(memory_NCSE)
        query_RD = self._query(residual.before(states_RD))
        query_NWHE = query_RD.view(len(memory_NCSE), -1, cross.n_heads, cross.width)
        context_RD = cross.context(query_NWHE.transpose(1, 2), memory_NCSE, lengths_N)
        states_RD = residual.after(states_RD, self._cross_output(context_RD))
        residual = block.feed_forward_residual
        inner_RF = block.feed_forward.activation(self._inner(residual.before(states_RD)))
        output_RD: Tensor = residual.after(states_RD, self._outer(inner_RF))
        return output_RD


class _Heads:
    """The heads of one attention, without its maps.

    Args:
        attention: of a supported model.
        first: where its keys are among those of all layers.
    """

    def __init__(self, attention: ScoreAttention, first: int) -> None:
        normaliser = attention.normaliser
        assert isinstance(normaliser, FusedNormaliser)
        self.n_heads, self.width = attention.place.n_heads, attention.place.head_dim
        self._first = first
        nothing = ScoreContext(Mask(), torch.empty(0), None, None)  # α does not depend on queries
        self._beta, self._power = beta_of(normaliser.row_alpha(nothing)), normaliser.power

    def part(self, states_BCKE: Tensor) -> Tensor:
        """Return the keys, then the values, of these heads (B, 2 * H, K, E)."""
        return states_BCKE.narrow(1, self._first, 2 * self.n_heads)

    def context(
        self, query_BHQE: Tensor, states_BCKE: Tensor, lengths_B: Tensor | None = None
    ) -> Tensor:
        """Return the contexts side by side (B * Q, H * E)."""
        key_BHKE, value_BHKE = states_BCKE.chunk(2, dim=1)
        query_BHQE = query_BHQE.to(key_BHKE.dtype)
        context_BQHE = context_of(
            query_BHQE, key_BHKE, value_BHKE, self._beta, self._power,
            Visible(lengths_B), self.width**-0.5,
        )  # fmt: skip
        return context_BQHE.view(-1, self.n_heads * self.width)
