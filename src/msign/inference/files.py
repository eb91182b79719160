"""What a fit keeps on disk: configuration, log, one file per finished stage, a checkpoint.

    config.json      what the run can be resumed with
    prior.npz        what sampling needs to know of the problem
    stages.jsonl     one line per round
    stage_<l>.npz    F_1, ..., F_l as stage l left them
    checkpoint.npz   all of the running stage's state
    posterior.json   the certificate; summary.json is for people
    predictive.npz   what simulated fields of the certificate predict of the data
    known.npz        the truth and an exact marginal, where these are known
    environment.json versions of what computed it

A checkpoint holds all of a stage's state, so that a run killed at any moment goes on from the last
round as if nothing had happened. No file is ever unpickled.
"""

import os
from typing import Any

import equinox as eqx
import jax
import numpy as np
from flowjax.bijections import Identity

from msign import archive
from msign.devices import writes_files
from msign.inference.config import FitConfig
from msign.inference.flows import FlowKind
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem, problem_without_forward
from msign.rundir import RunDirectory, damaged_checkpoint, taken_from


class FitFiles(RunDirectory):
    """Files of one fit.

    Args:
        path: The directory, made if it does not exist.
        write: Whether files will be written.
    """

    def __init__(self, path: str | os.PathLike[str], write: bool = True):
        super().__init__(path, write)
        self.checkpoint = self.path / "checkpoint.npz"
        self.predictive = self.path / "predictive.npz"
        self.known = self.path / "known.npz"

    def save_prior(self, problem: InverseProblem) -> None:
        """Write what sampling needs to know of the problem."""
        arrays = {f"prior.{k}": v for k, v in problem.prior.arrays().items()}
        what = {"name": problem.name, "scales": problem.scales, "prior": problem.prior.describe()}
        archive.save(self.path / "prior.npz", (), what, arrays)

    def load_problem(self) -> InverseProblem:
        """The problem without its forward map."""
        path = self.path / "prior.npz"
        description, arrays = archive.read_description(path)
        with taken_from(path):
            prior = archive.rebuild_prior(description["prior"], arrays)
            return problem_without_forward(prior, description["scales"], description["name"])

    # --- finished stages ------------------------------------------------------------------------

    def save_stage(
        self, network: MsIGN, scale: int, kind: FlowKind, progress: dict[str, Any]
    ) -> None:
        """Write the flows that a stage left, and the run's progress after it."""
        flows = network.flows[:scale]
        description = {"flows": describe_flows(network, kind), **progress}
        archive.save(self.path / f"stage_{scale}.npz", flows, description)
        if writes_files():
            self.checkpoint.unlink(missing_ok=True)

    def load_stage(
        self, scale: int, network: MsIGN, kind: FlowKind
    ) -> tuple[MsIGN, dict[str, Any]]:
        """The network that a finished stage left, and the run's progress after it."""
        self._check_order(network)
        path = self.path / f"stage_{scale}.npz"
        description, _ = archive.read_description(path)
        with taken_from(path):
            like = network_like(network, kind, description["flows"])
            flows = archive.load(path, like.flows[:scale])
            return eqx.tree_at(lambda n: n.flows[:scale], like, flows), description

    def finished_stages(self) -> list[int]:
        """Scales whose stages are finished, coarse to fine."""
        names = (p.stem.removeprefix("stage_") for p in self.path.glob("stage_*.npz"))
        return sorted(int(name) for name in names if name.isdecimal())

    # --- the running stage ------------------------------------------------------------------------

    def save_checkpoint(self, state: Any, network: MsIGN, description: dict[str, Any]) -> None:
        """Write the state of the running stage, and the network with which it started."""
        scalars = [leaf for leaf in jax.tree.leaves(state) if not _is_array(leaf)]
        # Rejected simulations have neither residuals nor weights.
        everything = {"scalars": scalars, **description}
        archive.save(self.checkpoint, (state, network.flows), everything, finite=False)

    def read_checkpoint(self) -> dict[str, Any] | None:
        """Description of the running stage; None if none was running."""
        if not self.checkpoint.exists():
            return None
        with damaged_checkpoint("the last finished stage"):
            return archive.read_description(self.checkpoint)[0]

    def load_checkpoint(self, state: Any, network: MsIGN) -> tuple[Any, MsIGN]:
        """State and network of a checkpoint, of the same structure as those given."""
        self._check_order(network)
        with damaged_checkpoint("the last finished stage"), taken_from(self.checkpoint):
            scalars = iter(archive.read_description(self.checkpoint)[0]["scalars"])
            state, flows = archive.load(self.checkpoint, (state, network.flows), finite=False)
            state = jax.tree.map(lambda leaf: leaf if _is_array(leaf) else next(scalars), state)
            return state, eqx.tree_at(lambda n: n.flows, network, flows)

    def _check_order(self, network: MsIGN) -> None:
        """Refuse flows whose whitened coordinates are not in the order of the network's."""
        path = self.path / "prior.npz"
        description, _ = archive.read_description(path)
        with taken_from(path):
            archive.check_order(network.prior_at(), description["prior"])


def describe_flows(network: MsIGN, kind: FlowKind) -> list[Any]:
    """Structure of every flow of a network as plain JSON values; None for the identity."""
    return [None if isinstance(f, Identity) else kind.describe(f) for f in network.flows]


def network_like(network: MsIGN, kind: FlowKind, flows: list[Any]) -> MsIGN:
    """The network with flows of the described structure."""
    for scale, description in enumerate(flows, start=1):
        if description is not None:
            network = network.with_flow(scale, kind.like(network, scale, description))
    return network


def prior_network(problem: InverseProblem, config: FitConfig) -> MsIGN:
    """The network before any training: every flow the identity, at every scale the prior."""
    flows = [Identity(p.lattice.field_shape) for p in problem.priors]
    return MsIGN(problem.prior, problem.scales, flows, conditioning=config.conditioning)


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray)
