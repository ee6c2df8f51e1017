"""Samples of a decoder-only model: their distribution, their cache, their independence.

Axes: S samples, N tokens, V vocabulary.
"""

import math
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import composer
from headwise.attention.build import unsupported_sites
from headwise.config.data import TextDataConfig
from headwise.config.register import group_choices, group_node, typed
from headwise.config.schema import TokenizerConfig
from headwise.data.tokenizer import BOS, BYTE_MODEL, COLUMN, N_SPECIALS, PAD, UNK, Tokenizer
from headwise.data.tokenizer_training import train_tokenizer
from headwise.decode.sampling import Context, Sampling, draw_samples, drawn
from headwise.errors import RunError
from headwise.losses.loss import SparsemaxLoss
from headwise.losses.output_map import SOFTMAX
from headwise.model.build import build_single
from headwise.model.places import site_alone
from headwise.runs.folder import RunFolder
from headwise.tasks.stream.density import Density
from headwise.tasks.stream.samples import TextSamples
from headwise.tasks.stream.stream import TokenStream, prepare_tokens
from headwise.tasks.stream.text import TextCorpus
from headwise.tasks.stream.windows import TrainingWindows

V, WINDOW, SITE = 7, 6, "decoder_self"
BARRED = (PAD, UNK, BOS)
SPARSEMAX = SparsemaxLoss().output_map
SMALL = (
    "model.layers=2", "model.d_model=16", "model.n_heads=2", "model.d_ff=32",
    "model.share_embeddings=none",
)  # fmt: skip


# schemes that need more than a name
POSITIONS = {"data_dims": ["positions=data_dims", "positions.shape=[2,2,3]"]}


@pytest.fixture(scope="module")
def make():
    with composer() as compose:

        def model(*overrides):
            config = typed(compose([*SMALL, *overrides]))
            torch.manual_seed(0)
            site = site_alone(config.model, SITE, "text")
            built = build_single(config, V, site).double().eval()
            torch.nn.init.normal_(built.output.weight, std=0.5)
            return built

        yield model


def draw(model, numbers=(1,), n_tokens=5, **changes):
    options = {"output": SOFTMAX, "sampling": Sampling(), "window": 64}
    options |= {"barred": BARRED, "prompts": [[] for _ in numbers], **changes}
    return draw_samples(model, numbers=numbers, n_tokens=n_tokens, **options)


@torch.no_grad()
def probabilities(model, output, ids):
    row = torch.tensor([[BOS, *ids]])
    probs = output.log_probs(model(row, torch.tensor([row.shape[1]])))[0, -1].exp()
    probs[list(BARRED)] = 0
    return (probs / probs.sum()).tolist()


@pytest.mark.parametrize("output", [SOFTMAX, SPARSEMAX])
def test_draws_have_the_probabilities_of_the_model(make, output):
    model, n_samples = make("attention=softmax"), 4000
    first = probabilities(model, output, ())
    expected = {
        (one, two): first[one] * second
        for one in range(V)
        for two, second in enumerate(probabilities(model, output, (one,)))
    }
    samples = draw(model, range(1, n_samples + 1), 2, output=output)
    counts = Counter(map(tuple, samples))
    assert all(expected[pair] > 0 for pair in counts)
    assert not set(BARRED) & {token for pair in counts for token in pair}
    if output.is_sparse:
        assert min(expected[pair] for pair in product(range(3, V), repeat=2)) == 0
    statistic = degrees = 0.0
    for pair, p in expected.items():
        if p * n_samples >= 5:
            statistic += (counts[pair] - p * n_samples) ** 2 / (p * n_samples)
            degrees += 1
    assert degrees >= 3
    assert statistic < degrees + 3 * math.sqrt(2 * degrees)


def causal(group):
    choices = group_choices(group)
    return [c for c in choices if SITE not in unsupported_sites(group_node(group, c), group)]


@torch.no_grad()
@pytest.mark.parametrize(
    "overrides",
    [
        ("attention=alpha_entmax", "pattern=strided"),
        ("attention=linear", "positions=learned"),
        ("attention=alpha_entmax", "positions=rotary"),
        ("attention=alpha_entmax", "model.cls_tokens=2"),
    ],
    ids=" ".join,
)
def test_cached_logits_equal_uncached(make, overrides):
    """Also where the model starts again, and for a long prompt, which is read in parts."""
    model = make(*overrides)
    prompt = torch.randint(3, V, (1, 600), generator=torch.Generator().manual_seed(2))
    whole = [Context(model, 1000, cached).logits(prompt) for cached in (True, False)]
    torch.testing.assert_close(*whole, rtol=1e-9, atol=1e-9)
    ids = torch.randint(3, V, (2, 13), generator=torch.Generator().manual_seed(1))
    for aligned in (False, True):
        contexts = [Context(model, WINDOW, cached, aligned) for cached in (True, False)]
        for end in range(5, 14):
            cached, uncached = (context.logits(ids[:, :end]) for context in contexts)
            torch.testing.assert_close(cached, uncached, rtol=1e-9, atol=1e-9)
            # once it has read six tokens, it starts again from the last three, the new one
            # included; or, aligned, from the new one
            n_starts = math.ceil((end - WINDOW) / (WINDOW if aligned else 4))
            first = max(0, n_starts) * (WINDOW if aligned else 4)
            read = ids[:, first:end]
            alone = model(read, torch.full((2,), read.shape[1]))[:, -1]
            torch.testing.assert_close(uncached, alone, rtol=1e-9, atol=1e-9)


def test_a_sample_depends_on_seed_and_number_alone(make):
    model, numbers = make("attention=alpha_entmax"), range(1, 6)
    state = torch.get_rng_state()
    together = draw(model, numbers, 20, window=8)
    assert together == [draw(model, [number], 20, window=8)[0] for number in numbers]
    assert together == draw(model, numbers, 20, window=8, cached=False)
    assert [row[:9] for row in together[2:4]] == draw(model, [3, 4], 9, window=8)
    assert len({tuple(row) for row in together}) == 5
    other = draw(model, numbers, 20, window=8, sampling=Sampling(seed=2))
    assert not any(row in together for row in other)
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_continue_their_prompt(make):
    model = make("attention=softmax")
    greedy = Sampling(top_k=1)
    (whole,) = draw(model, [1], 8, sampling=greedy)
    assert draw(model, [7], 3, sampling=greedy, prompts=[whole[:5]]) == [whole]


def test_cache_of_linear_attention_does_not_grow(make):
    model = make("attention=linear")
    sizes = []
    for n_tokens in (3, 30):
        cache = model.make_cache()
        ids = torch.full((2, n_tokens), 4)
        model.states(ids, torch.full((2,), n_tokens), cache)
        sizes.append(sum(of_prefix.sums_BHEF.numel() for of_prefix, _ in cache.blocks))
    assert sizes[0] == sizes[1]


PROBS = [0.4, 0.3, 0.0, 0.2, 0.1]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, PROBS),
        ({"temperature": 0.5}, [0.16, 0.09, 0, 0.04, 0.01]),
        ({"temperature": 1e-309}, [0.4, 0, 0, 0, 0]),
        ({"temperature": 5e-324, "top_k": 2, "top_p": 1e-309}, [0.4, 0, 0, 0, 0]),
        ({"top_k": 2}, [0.4, 0.3, 0, 0, 0]),
        ({"top_k": 2**70}, PROBS),
        ({"top_p": 0.69}, [0.4, 0.3, 0, 0, 0]),
        ({"top_p": 0.71}, [0.4, 0.3, 0, 0.2, 0]),
        ({"top_p": 1e-9}, [0.4, 0, 0, 0, 0]),
        # of 0.4, 0.3 and 0.2, the first two have 7/9
        ({"top_k": 3, "top_p": 0.77}, [0.4, 0.3, 0, 0, 0]),
        # the squares of 0.4 and 0.3 have 25/30 of all
        ({"temperature": 0.5, "top_p": 0.83}, [0.16, 0.09, 0, 0, 0]),
    ],
)
def test_temperature_top_k_and_top_p_by_hand(settings, kept):
    log_probs = torch.tensor([PROBS, PROBS[::-1]], dtype=torch.float64).log()
    probs = Sampling(**settings).probabilities(log_probs)
    probs /= probs.sum(1, keepdim=True)
    expected = torch.tensor([kept, kept[::-1]], dtype=torch.float64)
    torch.testing.assert_close(probs, expected / expected.sum(1, keepdim=True))
    assert torch.equal(probs == 0, expected == 0)


def test_a_share_of_exactly_top_p_is_enough():
    log_probs = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64).log()
    assert (Sampling(top_p=0.5).probabilities(log_probs) > 0).tolist() == [[False, True, False]]


def test_tokens_equal_to_the_kth_are_kept():
    log_probs = torch.tensor([[0.2, 0.3, 0.2, 0.3]], dtype=torch.float64).log()
    assert (Sampling(top_k=1).probabilities(log_probs) > 0).tolist() == [[False, True, False, True]]


def test_quantiles_by_hand():
    probs = torch.tensor([[0.0, 0.5, 0.0, 1.5, 0.0]], dtype=torch.float64)
    cases = {0.0: 1, 0.2499: 1, 0.25: 3, 1 - 2**-53: 3}
    for quantile, token in cases.items():
        assert drawn(probs, torch.tensor([quantile], dtype=torch.float64)).tolist() == [token]


def test_nothing_is_drawn_without_a_probability(make):
    model = make("attention=softmax")
    for barred in (range(V), BARRED):
        with pytest.raises(RunError, match="no token can be drawn"):
            draw(model, barred=barred)
        model.output.weight.data.fill_(math.nan)


def test_bytes_that_are_no_character_are_replaced():
    samples = TextSamples(TextCorpus(TextDataConfig(), Path()), Tokenizer(BYTE_MODEL))
    assert samples.settings["barred"] == tuple(range(N_SPECIALS))
    rows = [[N_SPECIALS + byte for byte in text] for text in (b"a\xc3b", b"\xc3\xa4c\xc3")]
    assert samples.shown(rows, 4) == "==== sample 4 ====\na\ufffdb\n==== sample 5 ====\näc\n"
    assert samples.ids(samples.prompt("ä")) == rows[1][:2]


def test_an_image_larger_than_the_window_is_drawn_as_it_is_trained(make):
    model, image = make("attention=softmax"), [4, 5, 6, 4, 5, 6, 3, 3]
    stream = TokenStream(np.array(image), starts=np.array([0]))
    trained = TrainingWindows(stream, BOS, window=4, max_tokens=8, seed=1, aligned=True)
    read = trained.collate(0, np.arange(2)).columns[COLUMN].ids_BN
    context = Context(model, 4, aligned=True)
    drawn = torch.tensor([[BOS, *image[:-1]]])
    for end, given in enumerate(read.flatten(), start=1):
        assert drawn[0, end - 1] == given
        window, last = divmod(end - 1, 4)
        expected = model(read[[window]], torch.tensor([4]))[:, last]
        torch.testing.assert_close(context.logits(drawn[:, :end]), expected)


TEXT = "a b\n\n = T = \n\nc\na\n\nb\n"
TOKENIZERS = {
    "byte": Tokenizer(BYTE_MODEL),
    "char": train_tokenizer(iter(TEXT), TokenizerConfig(kind="char", vocab_size=300), exact=True),
}


class NextOf(torch.nn.Module):
    """All probability is on the next token of a row; `read` has the tokens of the last call."""

    def __init__(self, row):
        super().__init__()
        self.row, self.output = [*row, row[0]], torch.nn.Linear(300, 300, bias=False)
        torch.nn.init.eye_(self.output.weight)

    def states(self, ids_SN, *_):
        self.read = ids_SN[0].tolist()
        token = torch.tensor(self.row[len(self.read) - 1])
        return 1e9 * torch.nn.functional.one_hot(token, 300).float().expand(1, 1, -1)


@pytest.mark.parametrize("documents", ["line", "blank_line", "heading", None])
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("is_drawn", [True, False])
def test_samples_are_read_as_the_training_text(tmp_path, is_drawn, kind, documents):
    """The start token is no part of the text, drawn or of a prompt."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(TEXT, encoding="utf-8")
    data = TextDataConfig(name="text", dir=str(tmp_path), licence="", documents=documents)
    samples = TextSamples(TextCorpus(data, tmp_path), TOKENIZERS[kind])
    config = TokenizerConfig(kind=kind, vocab_size=300)
    stream = prepare_tokens(samples.corpus, config).stream("train")
    row, expected = stream.ids.tolist(), stream.before(np.arange(len(stream.ids)), BOS).tolist()
    if is_drawn and documents == "heading":  # the data says where another document starts
        expected = [BOS, *row[:-1]]
    model = NextOf(row)
    options = {**samples.settings, "prompts": [[] if is_drawn else row], "cached": False}
    (ids,) = draw(model, n_tokens=len(row) if is_drawn else 1, **options)
    assert ids[: len(row)] == row
    assert model.read[: len(row)] == expected


def test_masked_documents_are_drawn_alone(make):
    """After its start token a document does not depend on the documents before it."""
    model = make("attention=alpha_entmax", "positions=none")
    first = Context(model, 64, masked=True).logits(torch.tensor([[BOS, 4, 5, BOS, 6, 3]]))
    alone = Context(model, 64).logits(torch.tensor([[BOS, 6, 3]]))
    torch.testing.assert_close(first, alone)
    seen = Context(model, 64).logits(torch.tensor([[BOS, 4, 5, BOS, 6, 3]]))
    assert (seen - alone).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "coverage", "n"), [("char", 1.0, 256), ("char", 0.99, 0), ("byte", 1.0, 0)]
)
def test_tokens_that_are_no_text_are_barred(tmp_path, kind, coverage, n):
    """With full coverage every character has a token, so single bytes are no characters."""
    with composer() as compose:
        overrides = [f"tokenizer={kind}", f"tokenizer.character_coverage={coverage}"]
        config = typed(compose(["data=text", f"data.dir={tmp_path}", *overrides]))
    TOKENIZERS[kind].save(tmp_path / "tokenizer.model")
    barred = set(Density(config).samples(RunFolder(tmp_path)).settings["barred"])
    assert {PAD, UNK, BOS} <= barred
    assert len(barred & set(range(N_SPECIALS, N_SPECIALS + 256))) == n
