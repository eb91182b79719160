"""A run on disk: configuration, log, checkpoint of the running stage, one file per finished stage.

Every file is written under a temporary name and renamed. A checkpoint holds all of a stage's state,
so that a run killed at any moment goes on from the last round as if nothing had happened.
"""

import json
import os
import pathlib
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import archive
from msign.bijections import SubspaceFlow, Whitened
from msign.inference.config import FitConfig
from msign.inference.models import FlowCore, NetworkCore, StageModel, informed_flow
from msign.inference.stage import choose_method, initial_state
from msign.inference.start import with_informed_block
from msign.inference.state import Plan, StageState
from msign.network import MsIGN
from msign.priors import Prior
from msign.problems.inverse import Evaluated, InverseProblem

SCALARS = ("temperature", "round", "best_jeffreys", "stale", "settled", "khat", "lost")


class RunDirectory:
    """Files of one run.

    Args:
        path: The directory, made if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"out must be a directory that can be written, got {path}: {error}"
            ) from None

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file."""
        with archive.atomic_write(self.path / name) as file:
            file.write((json.dumps(value, indent=1, default=_plain) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """Read one JSON file."""
        return json.loads((self.path / name).read_text())

    def write_log(self, records: list[dict[str, Any]]) -> None:
        """Write `stages.jsonl`, one line per round."""
        lines = "".join(json.dumps(r, default=_plain) + "\n" for r in records)
        with archive.atomic_write(self.path / "stages.jsonl") as file:
            file.write(lines.encode())

    @property
    def started(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "config.json").exists()

    # --- the prior, so that samples can be drawn without the problem ------------------------------

    def save_prior(self, problem: InverseProblem) -> None:
        """Write what sampling needs to know of the problem."""
        arrays = {f"prior.{k}": v for k, v in problem.prior.arrays().items()}
        what = {"name": problem.name, "scales": problem.scales, "prior": problem.prior.describe()}
        archive.save(self.path / "prior.npz", (), what, arrays)

    def load_problem(self) -> "StoredProblem":
        """The problem without its forward map."""
        description, arrays = archive.read_description(self.path / "prior.npz")
        prior = archive.rebuild_prior(description["prior"], arrays)
        return StoredProblem(prior, description["scales"], description["name"])

    # --- finished stages and the checkpoint of the running one --------------------------------

    def save_stage(self, model: StageModel, scale: int, progress: dict[str, Any]) -> None:
        """Write the accepted model of a stage, and the run's progress after it."""
        structure = describe_model(model, scale)
        archive.save(self.path / f"stage_{scale}.npz", model, {"model": structure, **progress})
        (self.path / "checkpoint.npz").unlink(missing_ok=True)

    def load_stage(
        self, scale: int, problem: InverseProblem, config: FitConfig
    ) -> tuple[StageModel, dict[str, Any]]:
        """The accepted model of a finished stage, and the run's progress after it."""
        path = self.path / f"stage_{scale}.npz"
        description, _ = archive.read_description(path)
        like = model_like(description["model"], problem, config)
        return archive.load(path, like), description

    def finished_stages(self) -> list[int]:
        """Scales whose stages are finished, coarse to fine."""
        return sorted(int(p.stem[6:]) for p in self.path.glob("stage_*.npz"))

    def save_checkpoint(self, state: StageState, plan: Plan, progress: dict[str, Any]) -> None:
        """Write the state of the running stage."""
        running = {
            "model": describe_model(plan.model, plan.scale),
            "plan": {"begin": plan.begin, "limit": plan.limit, "round_size": plan.round_size},
            "proposals": len(state.proposals),
            "pool_size": state.pool.size,
            **{name: getattr(state, name) for name in SCALARS},
        }
        archive.save(self.path / "checkpoint.npz", (state, plan.model), {**running, **progress})

    def load_checkpoint(
        self, problem: InverseProblem, config: FitConfig, key: PRNGKeyArray
    ) -> tuple[StageState, Plan, dict[str, Any]] | None:
        """State, plan and progress of the running stage; None if no stage was running."""
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        saved, _ = archive.read_description(path)
        scale = saved["model"]["scale"]
        model = model_like(saved["model"], problem, config)
        plan = Plan(model, scale, key=jr.fold_in(key, scale), **saved["plan"])
        method = choose_method(config, problem, scale, model.core.size)
        like = initial_state(problem, config, plan, method)
        like = eqx.tree_at(lambda t: t.proposals, like, [model.core] * saved["proposals"])
        state, model = archive.load(path, (like, model))
        values = [saved[name] for name in SCALARS] + [saved["pool_size"]]
        where = lambda t: [getattr(t, name) for name in SCALARS] + [t.pool.size]  # noqa: E731
        return eqx.tree_at(where, state, values), plan._replace(model=model), saved


class StoredProblem(InverseProblem):
    """A problem read from a run: its prior and scales, but no forward map."""

    def __init__(self, prior: Prior, scales: int, name: str):
        super().__init__(prior, _no_forward, [0.0], noise_std=1.0, scales=scales, name=name)

    def evaluate(self, u: ArrayLike, scale: int, gradient: bool = False) -> Evaluated:
        raise ValueError(
            "problem must be given to Posterior.load to simulate: this run was loaded without it"
        )


def _no_forward(x: ArrayLike) -> np.ndarray:
    return np.zeros((len(np.asarray(x)), 1))


def describe_model(model: StageModel, scale: int) -> dict[str, Any]:
    """The structure of a stage's model as plain JSON values."""
    if isinstance(model.core, FlowCore):
        return {"kind": "flow", "scale": scale, "ranks": list(model.core.ranks)}
    assert isinstance(model.core, NetworkCore)
    return {"kind": "network", "scale": scale, "informed": informed_ranks(model.core.network)}


def informed_ranks(network: MsIGN) -> dict[str, int]:
    """Rank of the informed block of each scale that has one."""
    ranks = {}
    for l, flow in enumerate(network.flows, start=1):
        first = getattr(flow, "bijections", (None,))[0]
        if isinstance(first, Whitened) and isinstance(first.inner, SubspaceFlow):
            ranks[str(l)] = first.inner.inner.shape[0]
    return ranks


def model_like(structure: dict[str, Any], problem: InverseProblem, config: FitConfig) -> StageModel:
    """A model of a described structure, with initial weights."""
    scale = structure["scale"]
    d = problem.priors[scale - 1].lattice.dim
    if structure["kind"] == "flow":
        ranks = tuple(structure["ranks"])
        flow = informed_flow(jr.key(0), ranks, config.informed)
        return StageModel(FlowCore(flow, ranks), jnp.zeros((d, ranks[-1])), d)
    network = MsIGN(problem.prior, problem.scales, config.glow, conditioning=config.conditioning)
    for l, rank in structure["informed"].items():
        dim = network.lattices[int(l) - 1].dim
        network = with_informed_block(network, int(l), np.zeros((dim, rank)), config, jr.key(0))
    return StageModel(NetworkCore(network, scale), None, d)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
