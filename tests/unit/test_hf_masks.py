"""Masks of Transformers that are formed only where their values are read."""

import pytest
import torch
from transformers import masking_utils as masking
from transformers.masking_utils import and_masks, eager_mask, or_masks, sdpa_mask

from headwise.hf.masks import UnformedMask, mask_for

pytestmark = pytest.mark.slow

N = 12
POSITIONS = torch.tensor([[*range(5), *range(7)], [*range(12)]])
DOCUMENTS = masking.packed_sequence_mask_function(masking.find_packed_sequence_indices(POSITIONS))


def in_documents(function):
    return and_masks(masking.remap_positions_for_packed_sequence(function, POSITIONS), DOCUMENTS)


FUNCTIONS = {
    "causal": masking.causal_mask_function,
    "all": masking.bidirectional_mask_function,
    "window before": masking.sliding_window_causal_mask_function(4),
    "window around": masking.sliding_window_bidirectional_mask_function(4),
    "documents": in_documents(masking.causal_mask_function),
    "window in documents": in_documents(masking.sliding_window_causal_mask_function(3)),
}
OTHERS = {
    "chunks": masking.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int)),
    "either": or_masks(masking.causal_mask_function, DOCUMENTS),
    "window of later keys": masking.sliding_window_overlay(4),
    "positions of documents": masking.remap_positions_for_packed_sequence(
        masking.causal_mask_function, POSITIONS
    ),
    "a user's": lambda sentence, head, query, key: key < 3,
}
PADDINGS = {
    "none": None,
    "right": torch.arange(N) < torch.tensor([[N], [7]]),
    "left": torch.arange(N) >= torch.tensor([[0], [5]]),
    "holes": torch.arange(N) % torch.tensor([[5], [3]]) != 1,
}


def arguments(function, padding, offset):
    return {
        "batch_size": 2, "q_length": N - offset, "kv_length": N, "q_offset": offset,
        "mask_function": function, "attention_mask": padding, "allow_is_causal_skip": False,
        "dtype": torch.float32,
    }  # fmt: skip


# Packed rows have no cache.
CASES = [(name, 0) for name in FUNCTIONS]
CASES += [(name, 3) for name in FUNCTIONS if "documents" not in name]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("name", "offset"), CASES)
def test_what_is_visible_is_the_mask_of_transformers(name, padding, offset):
    call = arguments(FUNCTIONS[name], PADDINGS[padding], offset)
    mask = mask_for(sdpa_mask, **call)
    assert isinstance(mask, UnformedMask)
    expected = sdpa_mask(**call)
    dense = mask.visible.dense(N - offset, N, torch.device("cpu"))
    assert torch.equal(
        expected, torch.as_tensor(True if dense is None else dense).expand_as(expected)
    )
    is_right = padding == "right"
    assert (mask.visible.key_lengths_B is not None) == is_right
    assert (mask.visible.mask is not None) == (padding in ("left", "holes"))


def test_a_window_longer_than_the_rows_is_none():
    windows = {}
    for n in (N - 1, N, N + 1):
        function = masking.sliding_window_causal_mask_function(n)
        windows[n] = mask_for(sdpa_mask, **arguments(function, None, 0)).visible.window
    assert windows == {N - 1: N - 2, N: None, N + 1: None}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_formed(name):
    call = arguments(OTHERS[name], None, 0)
    mask = mask_for(sdpa_mask, **call)
    assert not isinstance(mask, UnformedMask)
    assert torch.equal(mask, sdpa_mask(**call))


@pytest.mark.parametrize("form", [sdpa_mask, eager_mask])
def test_operations_see_the_values(form):
    call = arguments(FUNCTIONS["causal"], PADDINGS["left"], 0)
    mask, expected = mask_for(form, **call), form(**call)
    assert (mask.shape, mask.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(mask[:, :, 2:, :5], expected[:, :, 2:, :5])
    assert torch.equal(mask.to(torch.float64), expected.to(torch.float64))
    assert torch.equal(torch.where(mask == 0, 1, 2), torch.where(expected == 0, 1, 2))
