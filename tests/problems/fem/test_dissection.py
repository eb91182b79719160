import numpy as np
import pytest

from msign.problems.fem.dissection import TILE, plan_factorisation


@pytest.mark.parametrize("size", [2, 3, 9, 16, 18, 37, 64])
def test_every_inner_node_is_eliminated_once_and_children_come_first(size):
    plan, factor_length, memory_length = plan_factorisation(size)
    assert memory_length > factor_length
    inner = np.arange((size + 1) ** 2).reshape(size + 1, size + 1)[1:-1, 1:-1].ravel()
    eliminated = np.concatenate(
        [plan.nodes[f["nodes"] : f["nodes"] + f["pivots"]] for f in plan.fronts]
    )
    assert sorted(eliminated[eliminated > 0]) == sorted(inner)
    done: set[int] = set()
    for front in plan.fronts:
        first = front["nodes"]
        boundary = plan.nodes[first + front["pivots"] :][: front["boundary"]]
        assert not done & set(boundary.tolist())
        done |= set(plan.nodes[first : first + front["pivots"]].tolist()) - {0}
    for number, front in enumerate(plan.fronts):
        assert front["left"] < number
        assert front["right"] < number
        assert front["pivots"] % TILE == front["rows"] % TILE == 0
    assert plan.fronts[-1]["boundary"] == 0


def test_fill_of_the_factor_is_that_of_nested_dissection():
    """31/4 n log2(n) for n x n unknowns is George's bound for the nine-point stencil."""
    for size in (32, 64, 128):
        _, factor_length, _ = plan_factorisation(size)
        assert factor_length < 31 / 4 * size**2 * np.log2(size)
