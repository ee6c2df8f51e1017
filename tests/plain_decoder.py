"""A density model recomputed from its weights in plain torch and float64, without headwise."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm, linear

Weights = Mapping[str, Tensor]


class PlainDecoder:
    """Pre-norm blocks with causal softmax attention, ReLU and sinusoidal positions."""

    def __init__(self, weights, n_heads):
        self.weights = {name: values.double() for name, values in weights.items()}
        self.n_heads = n_heads
        self.n_layers = sum(name.endswith("query.weight") for name in weights)

    def logits(self, ids):
        """Logits (N, V) after each of the ids."""
        table_VD = self.weights["embedding.token.weight"]
        width = table_VD.shape[1]
        states_ND = table_VD[list(ids)] * math.sqrt(width) + positions(len(ids), width)
        for layer in range(self.n_layers):
            prefix = f"stack.layers.{layer}"
            states_ND = states_ND + self._attended(prefix, states_ND)
            normed_ND = self._normed(f"{prefix}.feed_forward_residual.norm", states_ND)
            inner_NF = self._mapped(f"{prefix}.feed_forward.inner", normed_ND).relu()
            states_ND = states_ND + self._mapped(f"{prefix}.feed_forward.outer", inner_NF)
        return linear(self._normed("stack.norm", states_ND), self.weights["output.weight"])

    def bits(self, ids, start_id, window, min_context=0):
        """Bits of all ids, in windows with at least `min_context` tokens before each scored id."""
        previous, nats, first = [start_id, *ids], 0.0, 0
        while first < len(ids):
            start = max(first - min_context, 0)
            end = min(start + window, len(ids))
            logits_NV = self.logits(previous[start:end])[first - start :]
            nats += cross_entropy(logits_NV, torch.tensor(ids[first:end]), reduction="sum").item()
            first = end
        return nats / math.log(2)

    def _attended(self, prefix, states_ND):
        normed_ND = self._normed(f"{prefix}.self_residual.norm", states_ND)
        query_HNE, key_HNE, value_HNE = (
            self._mapped(f"{prefix}.self_attention.{part}", normed_ND)
            .unflatten(-1, (self.n_heads, -1))
            .transpose(0, 1)
            for part in ("query", "key", "value")
        )
        scores_HNN = query_HNE @ key_HNE.transpose(1, 2) / math.sqrt(query_HNE.shape[-1])
        visible_NN = torch.ones(scores_HNN.shape[1:], dtype=torch.bool).tril()
        weights_HNN = scores_HNN.masked_fill(~visible_NN, -math.inf).softmax(-1)
        context_ND = (weights_HNN @ value_HNE).transpose(0, 1).flatten(1)
        return self._mapped(f"{prefix}.self_attention.output", context_ND)

    def _normed(self, name, states_ND):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(states_ND, weight.shape, weight, bias, eps=1e-6)

    def _mapped(self, name, states_ND):
        return linear(states_ND, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])


def positions(n_positions, width):
    """Sine and cosine signals (N, D) (Vaswani et al. 2017, section 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10000.0) / width))
    angles = torch.arange(n_positions).double()[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
