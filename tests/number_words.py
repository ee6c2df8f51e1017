"""A tokenizer whose words are numbers, for tests of translation."""

from types import SimpleNamespace


class NumberWords:
    """Words equal their ids; interface of `headwise.data.tokenizer.Tokenizer`."""

    def encode(self, sentences):
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def decode(self, ids):
        return [" ".join(map(str, line)) for line in ids]


PAIR = SimpleNamespace(source=NumberWords(), target=NumberWords())
