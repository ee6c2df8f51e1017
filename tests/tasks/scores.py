"""Scores of every task, computed here from the weights in float64, item by item."""

import math
from itertools import accumulate, chain, pairwise

import numpy as np
import sacrebleu
import torch
from torch.nn.functional import cross_entropy

from headwise.data.lossless import text_ids
from headwise.data.tokenizer import BOS, EOS, MASK, N_SPECIALS, Tokenizer
from tasks.data import LENGTH, codes, majority_bits, pictures, rows

SPLITS = "valid", "test"
WINDOW, MUSIC_WINDOW = 16, 20


@torch.no_grad()
def translation_scores(trained):
    loaded, model, scores = trained.loaded(), trained.model(), {}
    for split in ("valid", "test_a", "test_b"):
        sides = [trained.data(f"{split}.{end}").read_text().splitlines() for end in ("de", "en")]
        tokenizers = loaded.tokenizers.source, loaded.tokenizers.target
        encoded = [t.encode(lines) for t, lines in zip(tokenizers, sides, strict=True)]
        nats = n_tokens = 0
        for source, target in zip(*encoded, strict=True):
            ids = torch.tensor([[*source, EOS]])
            logits = model(ids, torch.tensor([ids.shape[1]]), torch.tensor([[BOS, *target]]))
            targets = torch.tensor([*target, EOS])
            nats += cross_entropy(logits[0], targets, reduction="sum").item()
            n_tokens += len(targets)
        scores[f"{split}/nll"] = nats / n_tokens
        hypotheses = [translation.text for translation in loaded.translate(sides[0])]
        for name, score in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
            scores[f"{split}/{name}"] = score(hypotheses, [sides[1]]).score
    return scores


@torch.no_grad()
def stream_bits(model, documents, window=WINDOW, masked=False):
    """Bits per value of documents in windows; `masked`: none sees another document."""
    ids = [int(value) + N_SPECIALS for document in documents for value in document]
    starts = [0, *accumulate(map(len, documents))][:-1]
    previous = [BOS if n in starts else ids[n - 1] for n in range(len(ids))]
    nats = 0.0
    for start, end in pairwise(
        sorted({*range(0, len(ids), window), *(starts if masked else ()), len(ids)})
    ):
        logits = model(torch.tensor([previous[start:end]]), torch.tensor([end - start]))[0]
        nats += cross_entropy(logits, torch.tensor(ids[start:end]), reduction="sum").item()
    return nats / math.log(2) / len(ids)


def text_scores(trained):
    scores, masked = {}, "data.document_mask=true" in trained.overrides
    for split in SPLITS:
        text = trained.data(f"{split}.txt").read_bytes()
        documents = text.splitlines(keepends=True) if masked else [text]
        scores[f"{split}/bits_per_byte"] = stream_bits(trained.model(), documents, masked=masked)
    return scores


def image_scores(trained):
    scores, model = {}, trained.model()
    for split in SPLITS:
        images = [image.flatten() for image in np.load(trained.data(f"{split}.npy"))]
        scores[f"{split}/bits_per_dimension"] = stream_bits(model, images, len(images[0]))
    return scores


def music_scores(trained):
    bits = {split: stream_bits(trained.model(), codes(split), MUSIC_WINDOW) for split in SPLITS}
    return {f"{split}/bits_per_dimension": of_split for split, of_split in bits.items()}


@torch.no_grad()
def masked_scores(trained):
    """Of masks drawn here as in an evaluation."""
    model, scores = trained.model(), {}
    tokenizer = Tokenizer.load(trained.run / "tokenizer.model")
    n_random = model.embedding.token.num_embeddings - N_SPECIALS
    for split in SPLITS:
        text = trained.data(f"{split}.txt").read_text(encoding="utf-8")
        ids = text_ids(text, tokenizer).tolist()
        nats, n_correct, n_chosen = 0.0, 0, 0
        for start in range(0, len(ids), WINDOW):
            targets = torch.tensor(ids[start : start + WINDOW])
            draws = np.random.default_rng([0, 0, start]).random((3, WINDOW))[:, : len(targets)]
            chosen = np.argsort(draws[0])[: max(1, round(0.15 * len(targets)))]
            inputs = targets.clone()
            for place in chosen:
                if draws[1, place] < 0.8:
                    inputs[place] = MASK
                elif draws[1, place] < 0.9:
                    inputs[place] = N_SPECIALS + int(draws[2, place] * n_random)
            logits = model(inputs[None], torch.tensor([len(inputs)]))[0][chosen]
            nats += cross_entropy(logits, targets[chosen], reduction="sum").item()
            n_correct += int((logits.argmax(1) == targets[chosen]).sum())
            n_chosen += len(chosen)
        scores[f"{split}/masked_bits"] = nats / math.log(2) / n_chosen
        scores[f"{split}/masked_accuracy"] = 100 * n_correct / n_chosen
    return scores


def text_examples(trained, split):
    """Ids and label of each text or pair."""
    n_texts, examples = 2 if "data.pair=other" in trained.overrides else 1, []
    for label, *texts in rows(split):
        parts = [[*(N_SPECIALS + byte for byte in text.encode()), EOS] for text in texts[:n_texts]]
        examples.append((list(chain(*parts)), label))
    return examples


def picture_examples(trained, split):
    """Patches (6, 48) and label of each picture."""
    return [
        (image.reshape(2, 4, 3, 4, 3).transpose(0, 2, 1, 3, 4).reshape(6, 48), label)
        for label, images in pictures(split).items()
        for image in images
    ]


@torch.no_grad()
def class_scores(trained):
    examples = picture_examples if trained.case.name == "pictures" else text_examples
    model, scores = trained.model(), {}
    for split in SPLITS:
        inputs, names = zip(*examples(trained, split), strict=True)
        classes = torch.tensor([sorted(set(names)).index(name) for name in names])
        logits = torch.cat(
            [model(torch.tensor(one)[None], torch.tensor([len(one)]))[0] for one in inputs]
        )
        predicted, f1 = logits.argmax(1), []
        for number in range(logits.shape[1]):
            is_true, is_predicted = classes == number, predicted == number
            both = float((is_true & is_predicted).sum())
            f1.append(2 * both / float(is_true.sum() + is_predicted.sum()))
        scores[f"{split}/nll"] = cross_entropy(logits, classes).item()
        scores[f"{split}/accuracy"] = 100 * (predicted == classes).double().mean().item()
        scores[f"{split}/f1_macro"] = 100 * sum(f1) / len(f1)
    return scores


@torch.no_grad()
def sequence_scores(trained):
    loaded, scores = trained.loaded(), {}
    for split in ("valid", "12", "40"):
        right = []
        for number in range(9):
            (row,) = loaded.task.rows(split, [number])
            batch = loaded.task.layout.batch([row], [0])
            logits = loaded.model(**loaded.model.inputs(batch)).flatten(0, 1)
            right.append(logits[batch.scored_R].argmax(1) == batch.targets_R)
        correct = torch.stack(right).double()
        assert correct.shape == (9, 2)
        share, whole = float(correct.mean()), float(correct.prod(1).mean())
        values = {"tokens": 100 * share, "errors": 1000 * (1 - share), "whole": 100 * whole}
        values["counted"] = 100 * share**2
        scores |= {f"{split}/{name}": value for name, value in values.items()}
    return scores


@torch.no_grad()
def majority_scores(trained):
    model, scores = trained.model(), {}
    for split in SPLITS:
        bits = torch.from_numpy(majority_bits(split))
        expected = torch.stack([2 * bits[:, :n].sum(1) > n for n in range(1, LENGTH + 1)], 1)
        logits = model(bits, torch.full((len(bits),), LENGTH))
        scores[f"{split}/accuracy"] = (logits.argmax(-1) == expected).double().mean().item()
    return scores
