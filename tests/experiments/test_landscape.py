"""Where the divergences of appendix B have their local minima."""

import numpy as np

from msign.experiments.landscape import landscape, local_minima


def test_landscape_of_appendix_b():
    surfaces = landscape(n=61)
    both = [(-1.5, 1.5), (1.5, -1.5)]
    one_mode_only = [(-1.5, -1.5), (1.5, 1.5)]

    def minima(surface):
        return sorted(tuple(np.round(m, 6)) for m in local_minima(surface, surfaces.centres))

    assert minima(surfaces.reverse_kl) == sorted(both + one_mode_only)
    assert minima(surfaces.jeffreys) == both
    np.testing.assert_allclose(
        surfaces.reverse_kl + surfaces.forward_kl, surfaces.jeffreys, rtol=1e-9, atol=1e-12
    )
