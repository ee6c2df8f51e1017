import numpy as np
import torch

from headwise.seed import derived_seed, seed_everything


def test_seeds_are_functions_of_their_parts():
    assert derived_seed(1, 2, 0) == derived_seed(1, 2, 0)
    seeds = {
        derived_seed(seed, update, rank)
        for seed in (1, 2)
        for update in range(50)
        for rank in range(2)
    }
    assert len(seeds) == 200
    assert derived_seed(1, 23) != derived_seed(12, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)
    seed_everything(3, "model")
    first = (torch.rand(3), np.random.rand(3))
    seed_everything(3, "model")
    assert torch.equal(first[0], torch.rand(3))
    assert (first[1] == np.random.rand(3)).all()
