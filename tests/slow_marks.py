"""Of a list of choices, a few in `make test` and the others in `make test-all`."""

import pytest


def slow_but(choices, *fast):
    """The choices as parameters, marked slow except those named (tuples by their first)."""
    slow = pytest.mark.slow
    tuples = [choice if isinstance(choice, tuple) else (choice,) for choice in choices]
    return [pytest.param(*one, marks=() if one[0] in fast else slow) for one in tuples]
