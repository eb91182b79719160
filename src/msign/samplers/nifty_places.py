"""The forward map at places in whitened coordinates, for methods that solve linear systems there.

What is known of a place is kept, so that nothing is simulated twice: its features, and its Jacobian
where that was worth its simulations.
"""

import dataclasses
from collections import OrderedDict

import jax
import numpy as np

from msign.noise import default_dtype
from msign.problems import Simulator

PRODUCTS = 7  # metric applications of a system solved by NIFTy's conjugate gradients, at least
LARGEST = 2**27  # numbers of a Jacobian


@dataclasses.dataclass
class Place:
    """What is known of a place: features `(m,)`, and the Jacobian `(m, d)` if there is one."""

    features: np.ndarray
    jacobian: np.ndarray | None = None


class Places:
    """Features, and products with their derivatives, of fields in whitened coordinates `(n, d)`.

    A product at a place that has been simulated counts one: the tangent or the adjoint solve. A
    Jacobian counts m + 1, and its products nothing. It is taken where products would cost as much:
    PRODUCTS of both kinds for each system that is solved there. A forward map in NumPy has no
    tangents but those of its Jacobian. Simulations have the precision that JAX has when this is
    made, whatever it has where they are asked for.

    Args:
        simulator: Counts.
        scale: Of the fields.
        kept: Places that are remembered, those that were used last; at least as many as are asked
            for at once.
    """

    def __init__(self, simulator: Simulator, scale: int, kept: int):
        self.simulator, self.scale, self.kept = simulator, scale, kept
        self.traceable, self.m = simulator.problem.traceable, simulator.problem.layout.m
        self._known: OrderedDict[bytes, Place] = OrderedDict()
        self._double = default_dtype() == np.float64

    def log_likelihood_and_gradient(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(n,)` and `(n, d)`; counts two a field."""
        with jax.enable_x64(self._double):
            found = self.simulator.evaluate(u, self.scale, gradient=True)
        assert found.gradient is not None
        for row, features in zip(u, found.features, strict=True):
            self._remember(row, Place(features))
        return found.log_likelihood, np.asarray(found.gradient, np.float64)

    def features(self, u: np.ndarray) -> np.ndarray:
        """`(n, m)`; counts one for a field that is not known."""
        return np.stack([place.features for place in self._at(u)])

    def jacobian(self, u: np.ndarray, systems: int = 1) -> np.ndarray | None:
        """All derivatives `(n, m, d)`; None where products are cheaper.

        Args:
            u: Places.
            systems: Of linear equations that will be solved at each.
        """
        places = self._at(u)
        missing = [i for i, place in enumerate(places) if place.jacobian is None]
        if missing and not self._worth_a_jacobian(u.shape[1], systems):
            return None
        if missing:
            with jax.enable_x64(self._double):
                _, slopes = self.simulator.jacobian(u[missing], self.scale)
            for i, slope in zip(missing, slopes, strict=True):
                places[i].jacobian = np.asarray(slope, np.float64)
        return np.stack([place.jacobian for place in places if place.jacobian is not None])

    def tangents(self, u: np.ndarray, along: np.ndarray) -> np.ndarray:
        """The derivatives of the features along `(n, d)`, `(n, m)`."""
        slopes = self.jacobian(u)
        if slopes is not None:
            return np.einsum("nmd,nd->nm", slopes, along)
        with jax.enable_x64(self._double):
            return self.simulator.jvp(u, along, self.scale, solved=True)[1]

    def adjoints(self, u: np.ndarray, cotangents: np.ndarray) -> np.ndarray:
        """The transposed derivatives `(n, d)` of cotangents `(n, m)`."""
        slopes = [place.jacobian for place in self._at(u)]
        known = [slope for slope in slopes if slope is not None]
        if len(known) == len(slopes):
            return np.einsum("nmd,nm->nd", np.stack(known), cotangents)
        with jax.enable_x64(self._double):
            return self.simulator.vjp(u, cotangents, self.scale, solved=True)[1]

    def _worth_a_jacobian(self, dim: int, systems: int) -> bool:
        cheap = self.m + 1 <= 2 * PRODUCTS * systems and self.m * dim <= LARGEST
        return cheap or not self.traceable

    def _at(self, u: np.ndarray) -> list[Place]:
        missing = [i for i, row in enumerate(u) if row.tobytes() not in self._known]
        if missing:
            with jax.enable_x64(self._double):
                found = self.simulator.evaluate(u[missing], self.scale)
            for i, features in zip(missing, found.features, strict=True):
                self._remember(u[i], Place(features))
        for row in u:
            self._known.move_to_end(row.tobytes())
        return [self._known[row.tobytes()] for row in u]

    def _remember(self, row: np.ndarray, place: Place) -> None:
        self._known.setdefault(row.tobytes(), place)
        self._known.move_to_end(row.tobytes())
        while len(self._known) > self.kept:
            self._known.popitem(last=False)
