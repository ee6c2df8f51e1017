"""Models of one stack: decoder-only or encoder-only.

Axes: B batch, N positions, D width, V classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from headwise.attention.place import Site
from headwise.config.schema import ModelConfig
from headwise.data.batch import Batch
from headwise.model.family import Model, Output, check_model_config
from headwise.model.inputs import Input
from headwise.model.parts import DEFAULT, Parts
from headwise.model.stack import MakeAttention, Stack, StackCache


class OneStack(Model):
    """An input, a stack and an output; subclasses define `states`.

    Args:
        config: sizes and kinds.
        table: embeds ids.
        output: maps states to logits.
        site: of the self-attention, which may be causal.
        make_attention: place -> attention module (see `headwise.attention.build`).
        seed: of the initial weights.
        parts: of the stack.
    """

    def __init__(
        self,
        config: ModelConfig,
        table: nn.Module,
        output: Output,
        site: Site,
        make_attention: MakeAttention,
        seed: int,
        parts: Parts = DEFAULT,
    ) -> None:
        super().__init__()
        check_model_config(config, True, parts)
        self.sites = (site,)
        self.embedding = Input(table, config, parts, config.cls_tokens)
        self.columns = {site.queries: self.embedding}
        self.stack = Stack(config, make_attention, self.sites, parts)
        self.output = output
        parts.init(self, output, seed)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        column = batch.columns[self.sites[0].queries]
        inputs = {"ids_BN": column.ids_BN, "lengths_B": column.lengths_B}
        if column.segments_BN is not None:
            inputs["segments_BN"] = column.segments_BN
        return inputs

    def all_states(
        self,
        ids_BN: Tensor,
        lengths_B: Tensor,
        cache: StackCache | None = None,
        segments_BN: Tensor | None = None,
    ) -> Tensor:
        """Return states (B, P + N, D), first those of the CLS tokens unless they are cached.

        Padding is on the right. With a cache, `ids_BN` has only the positions that are not cached.
        Positions of different `segments_BN` do not attend to each other, see `Mask`.
        """
        n_prefix = self.embedding.n_prefix
        n_cached = 0 if cache is None else cache.length
        embedded = self.embedding(ids_BN, max(n_cached - n_prefix, 0))
        # a causal stack needs no mask for padding, see `Stack.forward`
        real_B = None if self.sites[0].causal else lengths_B + n_prefix
        states_BPD: Tensor = self.stack(
            embedded, real_B, segments_BN, cache=cache, n_prefix=n_prefix
        )
        return states_BPD


class SingleStack(OneStack):
    """Maps ids to logits at each position.

    Args:
        config: sizes and kinds.
        vocabulary: number of ids, and of classes.
        site: see `OneStack`.
        make_attention: see `OneStack`.
        seed: see `OneStack`.
        parts: see `OneStack`.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: int,
        site: Site,
        make_attention: MakeAttention,
        seed: int,
        parts: Parts = DEFAULT,
    ) -> None:
        table = nn.Embedding(vocabulary, config.d_model)
        output = Output(config.d_model, vocabulary)
        super().__init__(config, table, output, site, make_attention, seed, parts)
        if config.share_embeddings != "none":
            output.weight = table.weight

    def states(
        self,
        ids_BN: Tensor,
        lengths_B: Tensor,
        cache: StackCache | None = None,
        segments_BN: Tensor | None = None,
    ) -> Tensor:
        """Return states (B, N, D), which `output` maps to logits; see `all_states`."""
        states_BPD = self.all_states(ids_BN, lengths_B, cache, segments_BN)
        return states_BPD[:, -ids_BN.shape[1] :]

    def make_cache(self) -> StackCache:
        """Return an empty cache for `states` of a causal stack."""
        return self.stack.make_cache()
