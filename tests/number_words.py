"""A tokenizer whose words are numbers, and a model that translates them."""

from types import SimpleNamespace

import torch

from headwise.attention.build import AttentionFactory
from headwise.config.register import group_node
from headwise.config.schema import ModelConfig
from headwise.model.blocks import PreNorm
from headwise.model.parts import SINUSOIDAL, Parts
from headwise.model.transformer import Transformer

VOCAB_SIZE, EOS = 24, 3


class NumberWords:
    """Words equal their ids; interface of `headwise.data.tokenizer.Tokenizer`."""

    def encode(self, sentences):
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def decode(self, ids):
        return [" ".join(map(str, line)) for line in ids]


PAIR = SimpleNamespace(source=NumberWords(), target=NumberWords())


def sharp_model(attention="softmax", norm=PreNorm, positions=SINUSOIDAL, heads=None, **choices):
    """A Transformer of heads of 16 whose random weights are sharp enough for texts to differ."""
    config = ModelConfig("test", 2, 2, d_model=32, n_heads=2, d_ff=48, share_embeddings="none")
    config.heads = heads
    nodes = {group: group_node(group, name) for group, name in choices.items()}
    nodes["attention"] = group_node("attention", attention)
    factory = AttentionFactory(nodes, positions=positions)
    parts = Parts(norm, positions=positions)
    model = Transformer(config, VOCAB_SIZE, VOCAB_SIZE, False, factory, 3, parts)
    numbers = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=numbers))
        model.output.weight[EOS] *= 2.0
    return model.eval()
