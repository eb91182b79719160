"""Forward maps in NumPy that worker processes import, without all that their tests need."""

import os
import signal

import numpy as np


def forward(x):
    """Row by row, so that a field's numbers do not depend on its batch."""
    return np.array([[np.tanh(f[0].sum()), np.tanh(f[:, 1].sum())] for f in np.asarray(x)])


def vjp(x, c):
    pulled = np.zeros(np.shape(x))
    for f, own, out in zip(np.asarray(x), np.asarray(c), pulled, strict=True):
        out[0] += own[0] * (1 - np.tanh(f[0].sum()) ** 2)
        out[:, 1] += own[1] * (1 - np.tanh(f[:, 1].sum()) ** 2)
    return pulled


def both(x, cotangents):
    observed = forward(x)
    return observed, vjp(x, cotangents(observed, slice(0, len(observed))))


def wrong_vjp(x, c):
    raise KeyError("no pressure")


def is_low(low, x):
    """The fields with at most this value in a cell."""
    return np.asarray(x)[:, 1, 1] <= low


def refusing(low, x):
    if is_low(low, x).any():
        raise ArithmeticError("too low")
    return forward(x)


def crashing(low, x):
    if is_low(low, x).any():
        os._exit(1)
    return forward(x)


def ring(x):
    return np.array([[f[0] * f[1], f[2] - f[3]] for f in np.asarray(x)])


class FatalOnce:
    """A forward map that kills the first worker which calls it once `armed` exists."""

    def __init__(self, folder, function=ring):
        self.armed, self.spent = folder / "armed", folder / "spent"
        self.function = function

    def __call__(self, x):
        found = self.function(x)
        if self.armed.exists():
            try:
                self.armed.rename(self.spent)
            except FileNotFoundError:
                return found
            os.kill(os.getpid(), signal.SIGKILL)
        return found
