"""CTranslate2 for `benchmarks.peers`: it translates only, in C++ with packed weights."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.toolkits import Searcher, words
from headwise.config.schema import ModelConfig

MAX_LENGTH = 1024


class CTranslate2(Searcher):
    """CTranslate2 4.8.5 in float32, as the others; random weights, norms before the sublayers."""

    name = "CTranslate2"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        from ctranslate2 import Translator
        from ctranslate2.specs.transformer_spec import TransformerSpec

        n_layers = (config.encoder_layers, config.decoder_layers)
        spec = TransformerSpec.from_config(n_layers, config.n_heads, pre_norm=True)
        self.known = ["<blank>", "<unk>", "<s>", "</s>", *words(n_words)]
        spec.register_source_vocabulary(self.known)
        spec.register_target_vocabulary(self.known)
        fill(spec, config, n_words)
        spec.validate()
        with TemporaryDirectory() as folder:
            spec.save(folder)
            threads = {"inter_threads": 1, "intra_threads": torch.get_num_threads()}
            self.translator = Translator(folder, "cpu", compute_type="float32", **threads)

    def search(self, source: Tensor, beam: int, steps: int) -> int:
        sentences = [[self.known[i] for i in row] for row in source.tolist()]
        limits = {"min_decoding_length": steps, "max_decoding_length": steps}
        results = self.translator.translate_batch(sentences, beam_size=beam, **limits)
        return min(len(result.hypotheses[0]) for result in results)


def fill(spec: Any, config: ModelConfig, n_words: int) -> None:
    """Write random weights to a specification; one matrix for both embeddings and the output."""
    numbers, width = np.random.default_rng(1), config.d_model

    def matrix(n_out: int, n_in: int) -> Any:
        return (numbers.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)

    def linear(to: Any, n_out: int, n_in: int) -> None:
        to.weight, to.bias = matrix(n_out, n_in), np.zeros(n_out, np.float32)

    def norm(to: Any) -> None:
        to.gamma, to.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    embedding = matrix(n_words, width)
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
    for side in (spec.encoder, spec.decoder):
        side.position_encodings.encodings = matrix(MAX_LENGTH, width)
        norm(side.layer_norm)
        for layer in side.layer:
            # query, key and value are joined
            sites: list[tuple[Any, tuple[int, ...]]] = [(layer.self_attention, (3, 1))]
            if side is spec.decoder:
                sites.append((layer.attention, (1, 2, 1)))
            for attention, parts in sites:
                norm(attention.layer_norm)
                for to, n in zip(attention.linear, parts, strict=True):
                    linear(to, n * width, width)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, config.d_ff, width)
            linear(layer.ffn.linear_1, width, config.d_ff)
