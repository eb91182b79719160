"""What goes wrong with a simulation, apart from the fields that it was given."""


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
