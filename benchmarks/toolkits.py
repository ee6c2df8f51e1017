"""Other toolkits' Transformers under one interface, for `benchmarks.peers`; none is a dependency.

Each class builds its toolkit's model at given sizes, takes one training step (forward pass, loss,
gradient, optimizer), and searches with the toolkit's own beam search, as its commands do. The
options are those of the toolkit but for what makes the work the same: sizes, norms before the
sublayers where there is the choice, dropout, one matrix for both embeddings and the output, label
smoothing 0.1. Adam is torch's as their trainers build it, but that transformers' trainer would
take the fused one, as we do (1 % of its step); its loss is torch's. What trainers do around a step
(clipping, records) is left out for all. OpenNMT-py's attention has no biases.
Imports stand inside the classes, so that a toolkit that is not installed is missed by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.build import AttentionFactory
from headwise.config.register import group_node
from headwise.config.schema import ModelConfig
from headwise.decode.beam import beam_search
from headwise.decode.prepared import PreparedModel, supports
from headwise.losses.loss import CrossEntropy
from headwise.model.transformer import Transformer
from headwise.precision import autocast, matmul_dtype
from headwise.train.optim import build_optimizer

CPU = torch.device("cpu")
ADAM: dict[str, Any] = {"lr": 1e-4, "betas": [0.9, 0.98], "eps": 1e-9}
SMOOTHING = 0.1
BEGIN, END = 2, 3  # any ids would do: what the ids mean costs no time


def words(n_words: int) -> list[str]:
    """Return the words of a dictionary, without its four special words."""
    return [f"w{i}" for i in range(n_words - 4)]


class Searcher(ABC):
    """A model with its search."""

    name: str

    @abstractmethod
    def __init__(self, config: ModelConfig, n_words: int) -> None: ...

    @abstractmethod
    def search(self, source: Tensor, beam: int, steps: int) -> int:
        """Return the length of the shortest best hypothesis; `steps` if the search is complete."""


class Toolkit(Searcher):
    """A model with its loss, optimizer and search."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def optimize(self) -> None:
        """The optimizer as the toolkits build it; to be called at the end of `__init__`."""
        self.optimizer = torch.optim.Adam(self.model.parameters(), **ADAM)

    def step(self, source: Tensor, target: Tensor) -> None:
        """One update from ids (sentences, words), every row full."""
        self.model.train()
        self.optimizer.zero_grad()
        self._loss(source, target).backward()
        self.optimizer.step()

    @abstractmethod
    def _loss(self, source: Tensor, target: Tensor) -> Any:
        """Cross-entropy a word."""

    def search(self, source: Tensor, beam: int, steps: int) -> int:
        self.model.eval()
        with torch.no_grad():
            return self._best_length(source, beam, steps)

    @abstractmethod
    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        """What `search` returns."""


def shifted(target: Tensor) -> Tensor:
    """The decoder's input."""
    return torch.cat([torch.full((len(target), 1), BEGIN), target[:, :-1]], dim=1)


def lengths(ids: Tensor) -> Tensor:
    """Of full rows."""
    return torch.full((ids.shape[0],), ids.shape[1])


def of_both_sides(**options: Any) -> dict[str, Any]:
    """The same for the encoder and the decoder."""
    sides = ("encoder", "decoder")
    return {f"{side}_{name}": value for side in sides for name, value in options.items()}


class Headwise(Toolkit):
    """Ours."""

    def __init__(
        self, config: ModelConfig, n_words: int, attention: str = "softmax", precision: str = "fp32"
    ) -> None:
        self.name = f"headwise, {attention}, {precision}"
        self.precision = precision
        choices = {"attention": group_node("attention", attention)}
        factory = AttentionFactory(choices, dropout=config.dropout)
        self.model: Transformer = Transformer(config, n_words, n_words, True, factory, seed=1)
        self.cross_entropy = CrossEntropy(SMOOTHING)
        self.optimizer = build_optimizer({"_target_": "torch.optim.Adam", **ADAM}, self.model)

    def _loss(self, source: Tensor, target: Tensor) -> Any:
        with autocast(CPU, self.precision):
            states_BTD = self.model.states(source, lengths(source), shifted(target))
            states_RD, weight_VD = states_BTD.flatten(0, 1), self.model.output.weight
            sums = self.cross_entropy.from_states(states_RD, weight_VD, target.flatten())
        return sums.loss / target.numel()

    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        model, dtype = self.model, matmul_dtype(self.precision, CPU)
        searched = PreparedModel(model, dtype) if supports(model, dtype) else model
        with autocast(CPU, self.precision):
            best = beam_search(searched, source.tolist(), [steps] * len(source), CPU, beam)
        return min(len(hypotheses[0].ids) for hypotheses in best)


class JoeyNMT(Toolkit):
    """JoeyNMT 2.3.0."""

    name = "JoeyNMT"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary

        special: dict[str, Any] = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>"}
        special |= {"eos_token": "</s>", "sep_token": None, "sep_id": None, "lang_tags": []}
        special |= {"unk_id": 0, "pad_id": 1, "bos_id": BEGIN, "eos_id": END}
        vocabulary = Vocabulary(words(n_words), SimpleNamespace(**special))
        width, n_layers, dropout = config.d_model, config.encoder_layers, config.dropout
        side = {"type": "transformer", "num_layers": n_layers, "num_heads": config.n_heads}
        side |= {"hidden_size": width, "ff_size": config.d_ff, "dropout": dropout}
        side |= {"layer_norm": "pre", "embeddings": {"embedding_dim": width, "scale": True}}
        tied = {"tied_embeddings": True, "tied_softmax": True}
        both = {"encoder": side, "decoder": dict(side), "initializer": "xavier_uniform", **tied}
        self.model: Any = build_model(both, vocabulary, vocabulary)
        self.model.loss_function = ("crossentropy", SMOOTHING)
        self.optimize()

    def _batch(self, source: Tensor, target: Tensor | None = None) -> Any:
        from joeynmt.batch import Batch

        if target is not None:
            target = torch.cat([shifted(target), torch.full((len(target), 1), END)], dim=1)
        order = torch.arange(len(source))
        return Batch(source, lengths(source), None, target, None, order, CPU, 1, END)

    def _loss(self, source: Tensor, target: Tensor) -> Any:
        batch = self._batch(source, target)
        batch.sort_by_src_length()
        total, *_ = self.model(return_type="loss", **vars(batch))
        return batch.normalize(total, "tokens")

    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        from joeynmt.search import search

        ids, _, _ = search(
            self.model, self._batch(source), steps, beam, beam_alpha=1.0, min_output_length=steps
        )
        return int(ids.shape[1])


class OpenNMT(Toolkit):
    """OpenNMT-py 3.5.1."""

    name = "OpenNMT-py"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        # Names the language of a line for a filter of texts; it has no wheel for Python 3.11.
        sys.modules.setdefault("fasttext", ModuleType("fasttext"))
        from onmt import opts
        from onmt.inputters.inputter import dict_to_vocabs
        from onmt.model_builder import build_base_model
        from onmt.utils.loss import LossCompute
        from onmt.utils.parse import ArgumentParser

        parser = ArgumentParser()
        for group in (opts.model_opts, opts._add_train_general_opts, opts.distributed_opts):
            group(parser)
        kind = ["-encoder_type", "transformer", "-decoder_type", "transformer"]
        options = parser.parse_args(kind)
        options.layers, options.heads = config.encoder_layers, config.n_heads
        options.hidden_size = options.word_vec_size = config.d_model
        options.transformer_ff, options.position_encoding = config.d_ff, True
        options.dropout = options.attention_dropout = [config.dropout]
        options.share_embeddings = options.share_decoder_embeddings = True
        ArgumentParser.update_model_opts(options)
        known = ["<unk>", "<blank>", "<s>", "</s>", *words(n_words)]
        special = {"data_task": "seq2seq", "decoder_start_token": "<s>"}
        self.vocabularies = dict_to_vocabs({**special, "src": known, "tgt": known})
        self.model: Any = build_base_model(options, self.vocabularies)
        for name, parameter in self.model.named_parameters():  # uninitialised until here
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        criterion = nn.CrossEntropyLoss(ignore_index=1, reduction="sum", label_smoothing=SMOOTHING)
        self.compute = LossCompute(criterion, self.model.generator, vocab=self.vocabularies["tgt"])
        self.optimize()

    def _loss(self, source: Tensor, target: Tensor) -> Any:
        whole_BT1 = torch.cat([torch.full((len(target), 1), BEGIN), target], dim=1).unsqueeze(2)
        batch = {"src": source.unsqueeze(2), "srclen": lengths(source), "tgt": whole_BT1}
        output, attention = self.model(batch["src"], whole_BT1, batch["srclen"])
        total, report = self.compute(batch, output, attention)
        return total / report.n_words

    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        from onmt.translate.beam_search import GNMTGlobalScorer
        from onmt.translate.translator import Translator

        translator = Translator(
            self.model,
            self.vocabularies,
            beam_size=beam,
            min_length=steps,
            max_length=steps,
            max_length_ratio=0,
            global_scorer=GNMTGlobalScorer(0.0, 0.0, "none", "none"),
        )
        batch = {"src": source.unsqueeze(2), "srclen": lengths(source)}
        predictions = translator.translate_batch(batch, False)["predictions"]
        return min(len(best[0]) for best in predictions)


class Fairseq(Toolkit):
    """fairseq 0.12.2, its Python alone."""

    name = "fairseq"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        with mutable_defaults():
            from fairseq.criterions.label_smoothed_cross_entropy import (
                LabelSmoothedCrossEntropyCriterion,
            )
            from fairseq.data import Dictionary
            from fairseq.models.transformer import TransformerModel, base_architecture

        self.dictionary = Dictionary()
        for word in words(n_words):
            self.dictionary.add_symbol(word)
        width, n_layers = config.d_model, config.encoder_layers
        options = of_both_sides(layers=n_layers, normalize_before=True, embed_dim=width)
        options |= of_both_sides(attention_heads=config.n_heads, ffn_embed_dim=config.d_ff)
        options |= {"max_source_positions": 1024, "max_target_positions": 1024}
        for place in ("dropout", "attention_dropout", "activation_dropout"):
            options[place] = config.dropout
        chosen = argparse.Namespace(**options, share_all_embeddings=True)
        base_architecture(chosen)
        task = SimpleNamespace(source_dictionary=self.dictionary, target_dictionary=self.dictionary)
        self.model: Any = TransformerModel.build_model(chosen, task)
        self.is_prepared = False
        self.criterion = LabelSmoothedCrossEntropyCriterion(task, False, SMOOTHING)
        self.optimize()

    def _inputs(self, source: Tensor) -> dict[str, Tensor]:
        return {"src_tokens": source, "src_lengths": lengths(source)}

    def _loss(self, source: Tensor, target: Tensor) -> Any:
        inputs = {**self._inputs(source), "prev_output_tokens": shifted(target)}
        sample = {"net_input": inputs, "target": target, "ntokens": target.numel()}
        total, n_words, _ = self.criterion(self.model, sample)
        return total / n_words

    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        from fairseq.sequence_generator import SequenceGenerator

        if not self.is_prepared:  # the model cannot be trained after this
            generation = SimpleNamespace(beam=beam, print_alignment=False)
            self.model.prepare_for_inference_(SimpleNamespace(generation=generation))
            self.is_prepared = True
        generator = SequenceGenerator(
            [self.model], self.dictionary, beam, max_len_a=0, max_len_b=steps - 1, min_len=steps - 1
        )
        hypotheses = generator.generate([self.model], {"net_input": self._inputs(source)})
        return min(len(best[0]["tokens"]) for best in hypotheses)  # the end is the last word


@contextmanager
def mutable_defaults() -> Iterator[None]:
    """Let dataclasses have defaults that are dataclasses, as before Python 3.11: fairseq does."""
    as_it_is = dataclasses._get_field  # type: ignore[attr-defined]

    def get_field(cls: type, name: str, *rest: Any) -> Any:
        default = getattr(cls, name, dataclasses.MISSING)
        if isinstance(default, dataclasses.Field):
            default = default.default
        if dataclasses.is_dataclass(default) and type(default).__hash__ is None:
            type(default).__hash__ = object.__hash__  # type: ignore[method-assign]
        return as_it_is(cls, name, *rest)

    dataclasses._get_field = get_field  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dataclasses._get_field = as_it_is  # type: ignore[attr-defined]


class Marian(Toolkit):
    """Marian's Transformer in Hugging Face transformers 5.23.0."""

    name = "transformers (Marian)"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        from transformers import MarianConfig, MarianMTModel

        n_layers, n_heads = config.encoder_layers, config.n_heads
        options = of_both_sides(layers=n_layers, ffn_dim=config.d_ff, attention_heads=n_heads)
        special = {"pad_token_id": 1, "eos_token_id": END, "decoder_start_token_id": BEGIN}
        marian = MarianConfig(
            **options,
            **special,
            vocab_size=n_words,
            d_model=config.d_model,
            dropout=config.dropout,
            attention_dropout=config.dropout,
            activation_dropout=config.dropout,
            activation_function="relu",
            scale_embedding=True,
            forced_eos_token_id=None,
        )
        self.model: Any = MarianMTModel(marian)
        self.optimize()

    def _loss(self, source: Tensor, target: Tensor) -> Any:
        logits_BTV = self.model(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            decoder_input_ids=shifted(target),
            use_cache=False,
        ).logits
        return nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), target.flatten(), label_smoothing=SMOOTHING
        )

    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        # forbids the end; `min_new_tokens` would copy all scores at each step
        self.model.final_logits_bias[:, END] = -1e9
        ids = self.model.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=beam,
            max_new_tokens=steps,
        )
        self.model.final_logits_bias.zero_()
        return int(ids.shape[1]) - 1  # without the start token
