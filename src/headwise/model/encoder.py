"""The encoder stack."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.config.schema import ModelConfig
from headwise.model.blocks import FeedForward, Residual, Stack, call_layer
from headwise.model.places import place_of

MakeAttention = Callable[[Place], Attention]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual."""

    def __init__(self, config: ModelConfig, layer: int, make_attention: MakeAttention) -> None:
        super().__init__()
        pre_norm = config.norm == "pre"
        self.attention = make_attention(place_of(config, "encoder_self", layer))
        self.attention_residual = Residual(config.d_model, pre_norm, config.dropout)
        self.feed_forward = FeedForward(
            config.d_model, config.d_ff, config.activation, config.activation_dropout
        )
        self.feed_forward_residual = Residual(config.d_model, pre_norm, config.dropout)

    def forward(self, states_BSD: Tensor, mask: Mask) -> Tensor:
        """States (B, S, D)."""
        read = self.attention_residual.before(states_BSD)
        context_BSD = self.attention(read, read, read, mask)
        states_BSD = self.attention_residual.after(states_BSD, context_BSD)
        read = self.feed_forward_residual.before(states_BSD)
        return self.feed_forward_residual.after(states_BSD, self.feed_forward(read))


class Encoder(Stack):
    """A stack of encoder layers."""

    branches_per_layer = 2

    def __init__(self, config: ModelConfig, make_attention: MakeAttention) -> None:
        numbers = range(1, config.encoder_layers + 1)
        super().__init__(config, (EncoderLayer(config, n, make_attention) for n in numbers))

    def forward(self, states_BSD: Tensor, lengths_B: Tensor, n_prefix: int = 0) -> Tensor:
        """States (B, S, D), the first `n_prefix` of them of register tokens."""
        mask = Mask(key_lengths_B=lengths_B, n_prefix=n_prefix)
        for layer in self.layers:
            states_BSD = call_layer(layer, self.recompute, states_BSD, mask)
        normed: Tensor = self.norm(states_BSD)
        return normed
