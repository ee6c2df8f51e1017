"""Calls of an attention that return its weights."""

from headwise.attention.recorder import recorded_weights


def with_weights(attention, *args):
    """Context (B, Q, D) and weights (B, H, Q, K); None if the attention forms none."""
    with recorded_weights(attention) as weights:
        context = attention(*args)
    return context, weights.get(attention.place.site, {}).get(attention.place.layer)
