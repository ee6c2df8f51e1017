"""Linformer (Wang et al. 2020): attention to at most k mixtures of the positions.

Axes: B batch, H heads, Q and K numbers of queries and keys, M mixtures of keys (at most k),
D model width, E head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headwise import entmax
from headwise.attention.attention import MultiHeadAttention
from headwise.attention.cache import AttentionCache, KeyValueCache
from headwise.attention.length_projection import (
    Convolution,
    LearnedProjection,
    LengthProjection,
    MaxPooling,
    MeanPooling,
)
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.errors import ConfigError, DataError, refuse, require
from headwise.ops.dropout.operator import dropout

SHARING = ("none", "headwise", "key_value", "layerwise")
SHARED_BY_KEY_VALUE = ("key_value", "layerwise")  # E = F, shared by all heads
PROJECTIONS = ("learned", "mean", "max", "convolution")
WITHOUT_WEIGHTS = ("mean", "max")  # without parameters to share
DEFAULT_K, DEFAULT_MAX_LENGTH = 64, 256
DEFAULT_SHARING, DEFAULT_PROJECTION = "layerwise", "learned"
NOT_CAUSAL = "its keys are mixtures of all positions, including those after a query"


class Linformer(MultiHeadAttention):
    """softmax(Q (E K)ᵀ / sqrt(head width)) (F V): E and F map K positions to at most k vectors.

    Rotary positions rotate keys before mixing, so they do not work with `before_split`.
    Padding is excluded from the mixtures; a mixture without real positions gets no weight. Recorded
    weights are the effective weights of the positions, softmax(...) F. They can be negative,
    unless F is a mean. With max pooling there are none.

    Args:
        place: site, layer and sizes.
        k: number of mixtures for max_length positions.
        max_length: maximum number of positions, including end of sentence and CLS tokens.
        sharing: modules that share E (section 4 of the paper). "none": each head has E
            and F; "headwise": the heads of a layer; "key_value": also keys and values, E = F;
            "layerwise": one E = F in the whole model, whose self- and cross-attention read the
            same positions of the source.
        projection: "learned" is the paper's free matrix. "mean", "max" and "convolution" reduce
            windows of max_length / k adjacent positions to one vector each; short sentences have
            fewer windows.
        before_split: mix the inputs of the key and value projections instead of their outputs, so
            that they run on the mixtures only. Needs E = F.
    """

    unsupported: ClassVar[Mapping[str, str]] = {"causal": NOT_CAUSAL}
    forms_weights = "effective"
    without_documents = (
        "attention=linformer cannot be combined with data.document_mask=true: its keys are "
        "mixtures of all positions; use attention=linear, softmax or alpha_entmax"
    )
    shared_part = "length_projection"

    length_projection: LengthProjection
    value_length_projection: LengthProjection | None

    def __init__(
        self,
        place: Place,
        k: int = DEFAULT_K,
        max_length: int = DEFAULT_MAX_LENGTH,
        sharing: str = DEFAULT_SHARING,
        projection: str = DEFAULT_PROJECTION,
        before_split: bool = False,
    ) -> None:
        super().__init__(place)
        require(max_length >= 1, "max_length", "at least 1", max_length)
        require(1 <= k <= max_length, "k", f"in [1, max_length={max_length}]", k)
        if sharing not in SHARING:
            raise refuse("sharing", sharing, SHARING)
        if projection not in PROJECTIONS:
            raise refuse("projection", projection, PROJECTIONS)
        if projection != "learned":
            divides = max_length % k == 0
            require(divides, "k", f"a divisor of max_length={max_length} for its windows", k)
        if before_split and sharing not in SHARED_BY_KEY_VALUE:
            raise refuse("sharing with before_split=true", sharing, SHARED_BY_KEY_VALUE)
        self.max_length = max_length
        self.before_split = before_split
        self.rotates = not before_split
        self.dropout = 0.0  # rate on the weights of mixtures
        n_sets = place.n_heads if sharing == "none" else 1
        self.length_projection = _length_projection(projection, n_sets, k, max_length)
        self.value_length_projection = None
        if sharing not in SHARED_BY_KEY_VALUE and projection not in WITHOUT_WEIGHTS:
            self.value_length_projection = _length_projection(projection, n_sets, k, max_length)
            if sharing == "none":
                names = ("length_projection.weight", "value_length_projection.weight")
                self.head_axes = dict.fromkeys(names, 0)
        if not self.length_projection.is_linear:
            self.forms_weights = "no"

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """Return one key per size of E if sharing is "layerwise", else None."""
        projection = settings.get("projection", DEFAULT_PROJECTION)
        is_shared = settings.get("sharing", DEFAULT_SHARING) == "layerwise"
        if not is_shared or projection in WITHOUT_WEIGHTS:
            return None
        k = settings.get("k", DEFAULT_K)
        return f"{projection} {k} × {settings.get('max_length', DEFAULT_MAX_LENGTH)}"

    @property
    def max_keys(self) -> int:
        """Columns of E: `max_length`."""
        return self.max_length

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return True for all heads if E is a mean, else False."""
        return (self.length_projection.is_average,) * self.place.n_heads

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """See `Attention.forward`.

        Raises:
            DataError: a sentence is longer than max_length.
            ConfigError: documents of one row do not see each other.
            ValueError: the mask is causal.
        """
        if mask.causal:
            raise ValueError(f"Linformer cannot be causal: {NOT_CAUSAL}")
        if mask.segments_BN is not None:
            raise ConfigError(self.without_documents)
        n_keys = key_BKD.shape[1]
        is_real_BN = self._is_real(mask, n_keys, key_BKD.device)
        first = -mask.n_prefix
        query_BHQE = self.split(self.query(query_BQD))
        if self.positions is not None:
            query_BHQE = self.positions.rotated(query_BHQE, mask.query_offset + first)
        if cache is None:
            key_BHME, value_BHME = self._mixtures(key_BKD, value_BKD, is_real_BN, first)
        else:
            assert isinstance(cache, KeyValueCache)
            if not cache.is_complete:
                cache.update(*self._mixtures(key_BKD, value_BKD, is_real_BN, first))
            key_BHME, value_BHME = cache.content()
        is_valid_BHQM = self.length_projection.is_valid(is_real_BN)[:, None, None]
        rate = self.dropout if self.training else 0.0
        if not self.recorders or self.forms_weights == "no":
            context_BHQE = nn.functional.scaled_dot_product_attention(
                query_BHQE, key_BHME, value_BHME, attn_mask=is_valid_BHQM, dropout_p=rate
            )
            return self.join(context_BHQE)
        scaled_BHQE = query_BHQE * self.place.key_dim**-0.5
        weights_BHQM = entmax.softmax(scaled_BHQE @ key_BHME.mT, mask=is_valid_BHQM)
        dropped_BHQM = dropout(weights_BHQM, rate)
        context_BHQE = dropped_BHQM.to(value_BHME.dtype) @ value_BHME
        spread_BHQN = self._value_projection().spread(weights_BHQM, is_real_BN)
        self.record(nn.functional.pad(spread_BHQN, (0, n_keys - spread_BHQN.shape[-1])))
        return self.join(context_BHQE)

    def make_cache(self, static: bool) -> KeyValueCache:
        """See `Attention.make_cache`; it holds mixtures and cannot grow."""
        if not static:
            raise ValueError(
                "Linformer supports only static caches: its keys are mixtures of all positions"
            )
        return KeyValueCache(static)

    def _value_projection(self) -> LengthProjection:
        """The paper's F."""
        projection = self.value_length_projection
        return self.length_projection if projection is None else projection

    def _mixtures(
        self, key_BKD: Tensor, value_BKD: Tensor, is_real_BN: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Return mixed keys and values (B, H, M, E) of the first N positions."""
        n_used = is_real_BN.shape[1]
        if not self.before_split:
            key_BNI, value_BNI = self.key(key_BKD[:, :n_used]), self.value(value_BKD[:, :n_used])
            if self.positions is not None:
                rotated_BHNE = self.positions.rotated(self.split(key_BNI), first)
                key_BNI = rotated_BHNE.transpose(1, 2).flatten(2)
            key_BMI = self.length_projection(key_BNI, is_real_BN)
            return self.split(key_BMI), self.split(self._value_projection()(value_BNI, is_real_BN))
        mixed_BMD = self.length_projection(key_BKD[:, :n_used], is_real_BN)
        key_BHME = self.split(self.key(mixed_BMD))
        if value_BKD is not key_BKD:
            mixed_BMD = self.length_projection(value_BKD[:, :n_used], is_real_BN)
        return key_BHME, self.split(self.value(mixed_BMD))

    def _is_real(self, mask: Mask, n_keys: int, device: torch.device) -> Tensor:
        """Return which of the first max_length positions are not padding, (B or 1, N)."""
        lengths_B = mask.key_lengths_B
        if n_keys > self.max_length:  # only padding may exceed it
            longest = n_keys if lengths_B is None else int(lengths_B.max())
            if longest > self.max_length:
                raise DataError(
                    f"a sentence of {longest} positions is longer than "
                    f"max_length={self.max_length} of the attention at {self.place.site}"
                )
            n_keys = self.max_length
        positions_N = torch.arange(n_keys, device=device)
        if lengths_B is None:
            return torch.ones_like(positions_N, dtype=torch.bool)[None]
        return positions_N < lengths_B[:, None]


def _length_projection(projection: str, n_sets: int, k: int, max_length: int) -> LengthProjection:
    if projection == "learned":
        return LearnedProjection(n_sets, k, max_length)
    size = max_length // k
    if projection == "convolution":
        return Convolution(n_sets, size)
    return MeanPooling(size) if projection == "mean" else MaxPooling(size)
