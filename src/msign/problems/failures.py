"""What goes wrong with a simulation."""

import numpy as np


class SimulatorUnavailable(RuntimeError):
    """The simulator could not be reached, which says nothing about the fields it was to be given.

    No failure policy turns this into a rejected field: a run ends, and can be resumed.
    """


class SimulationRaised(RuntimeError):
    """A simulation somewhere else raised, or ended its process.

    Attributes:
        what: It did, in words.
        rows: The rows of the batch that it was given.
    """

    def __init__(self, what: str, rows: slice):
        super().__init__(what)
        self.what, self.rows = what, rows


class SimulationError(RuntimeError):
    """A forward simulation raised, or returned NaN or infinity.

    Attributes:
        field: The field, at the finest scale, that it was given.
    """

    def __init__(self, message: str, field: np.ndarray):
        super().__init__(message)
        self.field = field
