"""The encoder-decoder Transformer (Vaswani et al. 2017), with configurable attention.

Axes: B batch, S source length, T target length, D width, H heads, V target vocabulary.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from headwise.attention.place import Site
from headwise.config.schema import ModelConfig
from headwise.data.batch import Batch
from headwise.model.family import Model, Output, check_model_config
from headwise.model.inputs import Input
from headwise.model.parts import DEFAULT, Parts
from headwise.model.stack import MakeAttention, Memory, Stack, StackCache


def encoder_decoder_sites(config: ModelConfig) -> tuple[Site, Site, Site]:
    """Return the sites: encoder self-attention, decoder self-attention, cross-attention."""
    n_decoder = config.decoder_layers
    return (
        Site("encoder_self", config.encoder_layers, "source", "source"),
        Site("decoder_self", n_decoder, "target", "target"),
        Site("cross", n_decoder, "target", "source"),
    )


class Transformer(Model):
    """Maps source ids to target logits.

    Args:
        config: sizes and kinds.
        source_vocab: number of ids of the source.
        target_vocab: number of ids of the target, and of classes.
        joint_vocab: whether both are one vocabulary, whose table can be shared.
        make_attention: place -> attention module (see `headwise.attention.build`).
        seed: of the initial weights.
        parts: of both stacks.
    """

    shares_memory: ClassVar[bool] = True  # see `headwise.decode.incremental.TranslationModel`

    def __init__(
        self,
        config: ModelConfig,
        source_vocab: int,
        target_vocab: int,
        joint_vocab: bool,
        make_attention: MakeAttention,
        seed: int,
        parts: Parts = DEFAULT,
    ) -> None:
        super().__init__()
        check_model_config(config, joint_vocab, parts)
        source_table = nn.Embedding(source_vocab, config.d_model)
        has_one_table = config.share_embeddings == "all"
        target_table = source_table if has_one_table else nn.Embedding(target_vocab, config.d_model)
        self.source_embedding = Input(source_table, config, parts, config.cls_tokens)
        self.target_embedding = Input(target_table, config, parts)
        encoder, causal, cross = self.sites = encoder_decoder_sites(config)
        self.columns = {"source": self.source_embedding, "target": self.target_embedding}
        self.encoder = Stack(config, make_attention, [encoder], parts)
        self.decoder = Stack(config, make_attention, [causal, cross], parts)
        self.output = Output(config.d_model, target_vocab)
        parts.init(self, self.output, seed)
        if config.share_embeddings != "none":
            self.output.weight = target_table.weight

    def encode(self, source_BS: Tensor, source_lengths_B: Tensor) -> Memory:
        """Encode the source; padding is on the right, CLS tokens are prepended.

        S of the memory, its lengths and recorded weights includes the CLS tokens.
        """
        n_prefix = self.source_embedding.n_prefix
        embedded, lengths_B = self.source_embedding(source_BS), source_lengths_B + n_prefix
        return Memory(self.encoder(embedded, lengths_B, n_prefix=n_prefix), lengths_B)

    def make_cache(self) -> StackCache:
        """Return an empty cache for `decode`."""
        return self.decoder.make_cache()

    def decode(
        self, target_in_BT: Tensor, memory: Memory, cache: StackCache | None = None
    ) -> Tensor:
        """Return logits (B, T, V) of the token after each of `target_in_BT`.

        With a cache, `target_in_BT` has only the positions that are not cached.
        """
        logits_BTV: Tensor = self.output(self._decode_states(target_in_BT, memory, cache))
        return logits_BTV

    def _decode_states(
        self, target_in_BT: Tensor, memory: Memory, cache: StackCache | None = None
    ) -> Tensor:
        offset = cache.length if cache is not None else 0
        embedded = self.target_embedding(target_in_BT, offset)
        states_BTD: Tensor = self.decoder(embedded, memory=memory, cache=cache)
        return states_BTD

    def states(self, source_BS: Tensor, source_lengths_B: Tensor, target_in_BT: Tensor) -> Tensor:
        """Return teacher-forced states (B, T, D), which `output` maps to logits.

        `Loss.from_states` computes output projection and loss from them in chunks.
        """
        return self._decode_states(target_in_BT, self.encode(source_BS, source_lengths_B))

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the keyword arguments of `states` and `forward` for a batch."""
        source, target = batch.columns["source"], batch.columns["target"]
        return {
            "source_BS": source.ids_BN,
            "source_lengths_B": source.lengths_B,
            "target_in_BT": target.ids_BN,
        }

    @property
    def max_source(self) -> int | None:
        """Maximum number of tokens of a source, including eos; None for no limit."""
        limits = [
            attention.max_keys - self.source_embedding.n_prefix
            for site, _, attention in self.attentions()
            if site != "decoder_self" and attention.max_keys is not None
        ]
        if self.source_embedding.max_positions is not None:
            limits.append(self.source_embedding.max_positions)
        return min(limits, default=None)
