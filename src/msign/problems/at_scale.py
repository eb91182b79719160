"""The forward map of one scale (appendix D): upsampling, features of the observations, derivatives.

A `ScaleModel` holds the compiled functions of a scale and no state. The likelihood is an argument
of all of them, so that the scale's own noise and an inflated one share one compiled program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign.devices import gathered, spread
from msign.lattice import Lattice
from msign.priors import Prior
from msign.problems.data_likelihood import DataLikelihood, Layout, cast
from msign.problems.failures import SimulatorUnavailable

Forward = Callable[[ArrayLike], ArrayLike]
Vjp = Callable[[ArrayLike, ArrayLike], ArrayLike]
Cotangents = Callable[[np.ndarray, slice], np.ndarray]
ForwardAndVjp = Callable[[np.ndarray, Cotangents], tuple[np.ndarray, np.ndarray]]


class ScaleModel:
    """From whitened coordinates of one scale to features of the observations, and back.

    Args:
        scale: l.
        prior: Of the scale.
        finer: Lattices of the scales above, through which fields are upsampled for `forward`.
        forward: The forward map.
        vjp: Its transposed derivative, if given.
        both: Forward map and transposed derivative at once, if given.
        layout: How observations lie in what `forward` returns.
        traceable: Whether `forward` is JAX code.

    Attributes:
        given: How a forward map in NumPy is given fields: in double precision, unless who calls it
            makes them so.
    """

    given: Callable[[ArrayLike], np.ndarray]

    def __init__(
        self,
        scale: int,
        prior: Prior,
        finer: Sequence[Lattice],
        forward: Forward,
        vjp: Vjp | None = None,
        both: ForwardAndVjp | None = None,
        *,
        layout: Layout,
        traceable: bool,
    ):
        self.scale, self.prior, self.layout, self.traceable = scale, prior, layout, traceable
        self.forward, self.vjp, self.both = forward, vjp, both
        self.given = functools.partial(np.asarray, dtype=np.float64)

        finer = tuple(finer)
        arrays, rest = eqx.partition(prior, lambda leaf: isinstance(leaf, jax.Array | np.ndarray))
        leaves, structure = jax.tree.flatten(rest)
        own = arrays, tuple(leaves), structure, finer  # the prior, its leaves that are no arrays

        def fields(u: jax.Array) -> jax.Array:
            return _lifted(prior.unwhiten(u), finer)

        def features(u: jax.Array, likelihood: DataLikelihood) -> jax.Array:
            cast_to = cast(likelihood, u.dtype)
            return cast_to.features(layout.flat(forward(fields(u))))

        def features_and_gradient(
            u: jax.Array, likelihood: DataLikelihood
        ) -> tuple[jax.Array, jax.Array]:
            f, transposed = jax.vjp(lambda v: features(v, likelihood), u)
            return f, transposed(cast(likelihood, u.dtype).score(f))[0]

        def jvp(
            u: jax.Array, tangents: jax.Array, likelihood: DataLikelihood
        ) -> tuple[jax.Array, jax.Array]:
            return jax.jvp(lambda v: features(v, likelihood), (u,), (tangents,))

        def vjp_of_features(
            u: jax.Array, cotangents: jax.Array, likelihood: DataLikelihood
        ) -> tuple[jax.Array, jax.Array]:
            f, transposed = jax.vjp(lambda v: features(v, likelihood), u)
            return f, transposed(cotangents)[0]

        def jacobian(u: jax.Array, likelihood: DataLikelihood) -> tuple[jax.Array, jax.Array]:
            f, transposed = jax.vjp(lambda v: features(v, likelihood), u)
            units = jnp.eye(f.shape[1], dtype=f.dtype)
            rows = jax.lax.map(lambda e: transposed(jnp.broadcast_to(e, f.shape))[0], units)
            return f, jnp.moveaxis(rows, 0, 1)

        self.lift = lambda x: _compiled_lift(x, finer)
        self.fields = lambda u: _compiled_fields(u, *own)
        self.pull = lambda gradient: _compiled_pull(gradient, *own)
        self.features = jax.jit(features)
        self.features_and_gradient = jax.jit(features_and_gradient)
        self._jvp, self._vjp = jax.jit(jvp), jax.jit(vjp_of_features)
        self._jacobian = jax.jit(jacobian)

    @property
    def differentiable(self) -> bool:
        """Whether gradients are to be had at this scale."""
        return self.traceable or self.vjp is not None

    def observe(self, x: ArrayLike, tolerant: bool = False) -> np.ndarray:
        """What the forward map gives for fields on the finest lattice `(n, m)`, without noise.

        NaN, where `tolerant`, for a field whose simulation raises.
        """
        return self.layout.flat(self._called_tolerantly(x) if tolerant else self._called(x))

    def _called(self, x: ArrayLike) -> np.ndarray:
        """The same in the shape that the forward map returns."""
        x = x if self.traceable else self.given(x)
        observed, n = np.asarray(self.forward(x), np.float64), np.shape(x)[0]
        if not self.layout.accepts(observed.shape, n):
            raise ValueError(
                f"forward must return shape {(n, *self.layout.shape)} for {n} fields, "
                f"got {observed.shape}"
            )
        return observed

    # --- values and gradients -------------------------------------------------------------------

    def simulate(
        self, u: np.ndarray, likelihood: DataLikelihood, gradient: bool, rows: int, tolerant: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Features `(n, m)`, and gradients of the log-likelihood if asked for.

        Args:
            u: Whitened coordinates `(n, d)`.
            likelihood: Of the scale.
            gradient: Whether to differentiate.
            rows: Number to which batches for compiled code are padded.
            tolerant: Whether a field whose simulation raises gets features of NaN instead.
        """
        n, padding = len(u), rows - len(u)
        if self.traceable:
            return self._simulate_compiled(_padded(u, padding), likelihood, gradient, n)
        x = self.given(gathered(self.fields(_padded(u, padding)))[:n])
        features, slopes = self._simulate_called(x, likelihood, gradient, tolerant)
        if slopes is None:
            return features, None
        return features, self._pulled(slopes, padding)

    def _simulate_compiled(
        self, u: jax.Array, likelihood: DataLikelihood, gradient: bool, n: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if not gradient:
            return gathered(self.features(u, likelihood))[:n].astype(np.float64), None
        features, slopes = self.features_and_gradient(u, likelihood)
        return gathered(features)[:n].astype(np.float64), gathered(slopes)[:n]

    def _simulate_called(
        self, x: np.ndarray, likelihood: DataLikelihood, gradient: bool, tolerant: bool
    ) -> tuple[np.ndarray, ArrayLike | None]:
        """Features, and gradients with respect to the fields x on the finest lattice."""
        flat = self.layout.flat
        if gradient and self.both is not None and not tolerant:
            cotangents = functools.partial(cotangents_of, likelihood, self.layout)
            observed, slopes = self.both(x, cotangents)
            return likelihood.features(flat(np.asarray(observed, np.float64))), slopes
        observed = self._called_tolerantly(x) if tolerant else self._called(x)
        features = likelihood.features(flat(observed))
        if not gradient:
            return features, None
        assert self.vjp is not None
        slopes = self.layout.spread(likelihood.pull(likelihood.score(features)), observed.shape)
        return features, self.vjp(x, np.nan_to_num(slopes))

    def _called_tolerantly(self, x: ArrayLike) -> np.ndarray:
        """All fields at once, or one by one if that raises; NaN for those that raise alone."""
        try:
            return self._called(x)
        except SimulatorUnavailable:
            raise
        except Exception:
            return stacked(
                [self._called_or_none(one[None]) for one in np.asarray(x)], self.layout.shape
            )

    def _called_or_none(self, x: np.ndarray) -> np.ndarray | None:
        try:
            return self._called(x)
        except SimulatorUnavailable:
            raise
        except Exception:
            return None

    def _pulled(self, slopes: ArrayLike, padding: int) -> np.ndarray:
        """Gradients by fields of the finest lattice as gradients by whitened coordinates."""
        array = np.asarray(slopes)
        return gathered(self.pull(_padded(array, padding)))[: len(array)]

    # --- products with the derivative of the features ---------------------------------------------

    def jvp(
        self, u: np.ndarray, tangents: np.ndarray, likelihood: DataLikelihood, rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` and their derivatives along tangents `(n, d)`; JAX code only."""
        padding = rows - len(u)
        arrays = _padded(u, padding), _padded(tangents, padding)
        return _first(len(u), self._jvp(*arrays, likelihood))

    def vjp_of_features(
        self, u: np.ndarray, cotangents: np.ndarray, likelihood: DataLikelihood, rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)`, and their transposed derivatives of cotangents `(n, m)`."""
        n, padding = len(u), rows - len(u)
        if self.traceable:
            arrays = _padded(u, padding), _padded(cotangents, padding)
            return _first(n, self._vjp(*arrays, likelihood))
        x = self.given(gathered(self.fields(_padded(u, padding)))[:n])
        observed = self._called(x)
        features = likelihood.features(self.layout.flat(observed))
        return features, self._transposed(x, cotangents, likelihood, observed.shape, padding)

    def jacobian(
        self, u: np.ndarray, likelihood: DataLikelihood, rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` and all of their derivatives `(n, m, d)`."""
        n, padding = len(u), rows - len(u)
        if self.traceable:
            return _first(n, self._jacobian(_padded(u, padding), likelihood))
        x = self.given(gathered(self.fields(_padded(u, padding)))[:n])
        observed = self._called(x)
        units = np.broadcast_to(np.eye(self.layout.m)[:, None], (self.layout.m, n, self.layout.m))
        slopes = [self._transposed(x, e, likelihood, observed.shape, padding) for e in units]
        return likelihood.features(self.layout.flat(observed)), np.stack(slopes, 1)

    def _transposed(
        self,
        x: np.ndarray,
        cotangents: np.ndarray,
        likelihood: DataLikelihood,
        shape: tuple[int, ...],
        padding: int,
    ) -> np.ndarray:
        assert self.vjp is not None
        whole = self.layout.spread(np.asarray(likelihood.pull(cotangents), np.float64), shape)
        return np.asarray(self._pulled(self.vjp(x, whole), padding), np.float64)


# --- between whitened coordinates and fields of the finest lattice --------------------------------
# One program for all problems that have the same prior.


def _lifted(x: jax.Array, finer: tuple[Lattice, ...]) -> jax.Array:
    for lattice in finer:
        x = lattice.upsample(x)
    return x


def _fields(
    u: jax.Array, arrays: Prior, rest: tuple[Any, ...], structure: Any, finer: tuple[Lattice, ...]
) -> jax.Array:
    prior = eqx.combine(arrays, jax.tree.unflatten(structure, rest))
    return _lifted(prior.unwhiten(u), finer)


def _pull(
    gradient: jax.Array,
    arrays: Prior,
    rest: tuple[Any, ...],
    structure: Any,
    finer: tuple[Lattice, ...],
) -> jax.Array:
    zero = jnp.zeros((len(gradient), arrays.lattice.dim), gradient.dtype)
    return jax.vjp(lambda u: _fields(u, arrays, rest, structure, finer), zero)[1](gradient)[0]


_compiled_lift = jax.jit(_lifted, static_argnums=1)
_compiled_fields = jax.jit(_fields, static_argnums=(2, 3, 4))
_compiled_pull = jax.jit(_pull, static_argnums=(2, 3, 4))


class EveryScale:
    """A forward map in JAX at all scales: fields of the prior, pooled from scale to scale.

    One program, where trying each scale by itself takes several for each of them.
    """

    def __init__(self, models: Sequence[ScaleModel]):
        self.models = tuple(models)

        def fields(u: jax.Array) -> list[jax.Array]:
            x = [self.models[-1].prior.unwhiten(u)]
            for model in reversed(self.models[1:]):
                x.append(model.prior.lattice.pool(x[-1]))
            return x[::-1]

        def observations(u: jax.Array) -> list[jax.Array]:
            pairs = zip(self.models, fields(u), strict=True)
            return [model.layout.flat(model.forward(model.lift(x))) for model, x in pairs]

        self._observations = jax.jit(observations)
        self._fields = jax.jit(fields)

    def observe(self, u: np.ndarray, rows: int) -> list[np.ndarray]:
        """Predicted observations `(n, m)` at all scales of fields with whitened coordinates u.

        They are given to compiled code by `rows` at a time.
        """
        pieces = [u[start : start + rows] for start in range(0, len(u), rows)]
        found = [self._observations(_padded(piece, rows - len(piece))) for piece in pieces]
        columns = zip(*found, strict=True)
        return [np.concatenate([gathered(a) for a in c])[: len(u)].astype(float) for c in columns]

    def whitened(self, u: np.ndarray, scale: int) -> np.ndarray:
        """Whitened coordinates of the same fields at a scale."""
        return np.asarray(self.models[scale - 1].prior.whiten(self._fields(u)[scale - 1]))


def cotangents_of(
    likelihood: DataLikelihood, layout: Layout, observed: np.ndarray, rows: slice | None = None
) -> np.ndarray:
    """The gradient of the log-likelihood by observations, whichever rows of a batch these are."""
    observed = np.asarray(observed)
    score = likelihood.score(likelihood.features(layout.flat(observed)))
    return layout.spread(likelihood.pull(score), observed.shape)


def stacked(rows: Sequence[np.ndarray | None], shape: tuple[int, ...]) -> np.ndarray:
    """Batches of one field each as one batch; NaN, of the given shape if all are None, for None."""
    whole = next((row.shape for row in rows if row is not None), (1, *shape))
    return np.concatenate([np.full(whole, np.nan) if row is None else row for row in rows])


def compiled_rows(n: int, most: int) -> int:
    """Rows of the batches in which compiled code is given n fields, `most` of them at once.

    Few distinct numbers, so that each is compiled once.
    """
    return min(most, 1 << max(0, (n - 1).bit_length()))


def _first(n: int, both: tuple[jax.Array, jax.Array]) -> tuple[np.ndarray, np.ndarray]:
    """The first n rows of two arrays."""
    first, second = (gathered(a)[:n].astype(np.float64) for a in both)
    return first, second


def _padded(a: np.ndarray, padding: int) -> jax.Array:
    """The array with its first entry repeated at the end, its rows spread over all devices."""
    if padding == 0:
        return spread(a)
    return spread(np.concatenate([a, np.broadcast_to(a[:1], (padding, *a.shape[1:]))]))
