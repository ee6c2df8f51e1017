"""Words from tokens, scores of merging heads, question words."""

import pytest
import torch

from headwise.analysis.text.questions import has_word_list, interrogation, n_tokens, question_words
from headwise.analysis.text.words import clusters, merging, surface
from weights_by_hand import Means, batch_of, observation

SEGMENTED = {
    "▁Ein ▁Mann .": [0, 1, 2],
    "▁Baum w olle , ▁die": [0, 0, 0, 1, 2],
    "▁U - Bahn - Karte !": [0, 0, 0, 0, 0, 1],
    "▁geht ' s ?": [0, 0, 0, 1],
    "▁the ▁dogs ' ▁ball": [0, 1, 2, 3],
    "▁- ▁so ▁- la": [0, 1, 2, 3],
    "▁ Ł ódź ▁ist": [0, 0, 0, 1],
    "▁a <unk> b ▁<unk>": [0, 0, 0, 1],
    "▁3 . 5 % )": [0, 1, 2, 3, 4],
    "▁caf <0xC3> <0xA9> s ▁.": [0, 0, 0, 0, 1],
    "▁a b ▁": [0, 0, 1],
    "▁z.B. ▁so": [0, 1],
    "": [],
}


@pytest.mark.parametrize("tokens", SEGMENTED)
def test_clusters_separate_words_and_punctuation(tokens):
    assert clusters(surface(tokens.split())) == SEGMENTED[tokens]


def test_text_is_joined_from_tokens_and_bytes():
    joined = surface(["▁caf", "<0xC3>", "<0xA9>", "▁au", "<0xE2>"])
    assert joined.text == " café au\udce2"
    assert joined.spans == [(0, 4), (4, 5), (4, 5), (5, 8), (8, 9)]
    assert joined.tokens_of(4, 5) == [1, 2]
    byte_text = surface([f"<0x{byte:02X}>" for byte in "é a".encode()])
    assert (byte_text.text, clusters(byte_text)) == ("é a", [0, 0, 1, 1])


def test_merge_scores_follow_the_definition():
    """One sentence: a word of one token, one of two, one of three."""
    rows = [
        [0.7, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0],
        [0.2, 0.5, 0.3, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.3, 0.2, 0.2, 0.3],
        [0.1, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.5, 0.4, 0.1, 0.0],
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # the end of the sentence is not a word
    ]
    part = Means(merging, {"source": [[0, 1, 1, 2, 2, 2]]})
    part.add(batch_of([6]), observation("encoder_self", [rows], [7]))
    tables = part.tables()
    scores = [0.7, max(0.3, 0.6), max(0.4, 0.0, 0.9)]
    assert tables["merge_score"]["encoder_self"] == [[pytest.approx(sum(scores) / 3)]]
    assert tables["split_merge_score"]["encoder_self"] == [[pytest.approx(sum(scores[1:]) / 2)]]
    mass = [0.7, 0.8, 1.0, 0.7, 0.9, 1.0]
    assert tables["cluster_mass"]["encoder_self"] == [[pytest.approx(sum(mass) / 6)]]


def test_decoder_words_start_after_bos():
    rows = [[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.3, 0.5, 0.2]]
    part = Means(merging, {"source": None, "target": [[0, 0]]})
    part.add(batch_of([1], [2]), observation("decoder_self", [rows], [3], causal=True))
    tables = part.tables()
    assert tables["merge_score"]["decoder_self"] == [[pytest.approx(0.5)]]
    assert tables["cluster_mass"]["decoder_self"] == [[pytest.approx((0.6 + 0.7) / 2)]]


QUESTIONS = {
    "de": {
        "▁Was ▁siehst ▁du ?": (["▁Was"], "?", True),
        "▁Ich ▁weiß , ▁wel ches ▁Haus .": (["▁wel", "ches"], ".", False),
        "▁Wer ▁kommt ▁? \" )": (["▁Wer"], "▁?", True),
        "▁Der ▁Warum .": (["▁Warum"], ".", False),
        "▁Das ▁etwas ?": None,
    },
    "en": {
        "▁Who ' s ▁there ?": (["▁Who"], "?", True),
        "▁the ▁man ▁who ▁sings": (["▁who"], "▁sings", False),
        "▁show ▁it ?": None,
    },
    "ro": {
        "▁De ▁ce ▁c ând ?": (["▁ce", "▁c", "ând"], "?", True),
        "▁C\u00e2\u0163i ▁vin .": (["▁C\u00e2\u0163i"], ".", False),  # with a cedilla
    },
    "ja": {
        "▁これは 何 です か ？": (["何", "か"], "？", True),
        "▁どこ から ?": (["▁どこ"], "?", True),
        "▁誰 も いない 。": (["▁誰"], "。", False),
        "▁あいつ から 。": None,
        "▁それほどの ぶどう 。": None,
        "▁何 です か 。": None,  # a question without a question mark
    },
}  # fmt: skip


@pytest.mark.parametrize("language", QUESTIONS)
def test_question_words_and_final_mark(language):
    assert has_word_list(language)
    for text, expected in QUESTIONS[language].items():
        tokens = text.split()
        question = question_words(surface(tokens), language)
        actual = question and (
            [tokens[i] for i in question.tokens],
            tokens[question.mark],
            question.is_question,
        )
        assert actual == expected, text
        # a region changes nothing
        assert question_words(surface(tokens), f"{language}-XX") == question
    assert has_word_list(f"{language}_XX")


@pytest.mark.parametrize("code", ["deu_Latn", "ENG", "rum", "jpn_Jpan"])
def test_codes_of_three_letters_have_word_lists(code):
    assert has_word_list(code)


def test_question_weights_are_means_over_tokens():
    sentences = ["▁Was ▁ist ?", "▁da , ▁was .", "▁ja !"]
    questions = [question_words(surface(text.split()), "de") for text in sentences]
    part = Means(interrogation, {"source": questions})
    weights = torch.zeros(3, 5, 5)
    weights[0, :4, :4] = torch.tensor([[0.1, 0.0, 0.8, 0.1]] * 4)
    weights[1, :5, :5] = torch.tensor([[0.0, 0.0, 0.4, 0.3, 0.3]] * 5)
    weights[2, :3, :3] = torch.tensor([[0.0, 1.0, 0.0]] * 3)
    part.add(batch_of([3, 4, 2]), observation("encoder_self", weights.tolist(), [4, 5, 3]))
    table = part.tables()
    assert table["question_weight"]["encoder_self"] == [[pytest.approx(0.8)]]
    assert table["statement_weight"]["encoder_self"] == [[pytest.approx(0.3)]]
    assert n_tokens(questions) == {"question": 1, "statement": 1}
