"""Options of `fit`, validated when made."""

import dataclasses
from typing import Any

import numpy as np

from msign import bijections, checks
from msign.inference import methods
from msign.inference.flows import KINDS, Cellwise, FlowKind, Informed
from msign.inference.methods import NAMED, Method, objectives
from msign.problems.inverse import InverseProblem

WHOLE_FIELDS = 0.5  # of what is left: share of a coarse stage whose flow moves all cells, and
INHERITED = 0.5  # of the tolerance: what such stages may leave to the finer ones, and
NOT_WORSE = 1.1  # times what the stage before has left


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How a posterior is trained.

    Attributes:
        flow: What stands at each scale: `Informed(...)`, flows in the likelihood-informed subspace;
            `Cellwise(...)`, a Gaussian of any rank and maps of single cells, at the finest scale
            alone; `Glow(...)`, the paper's stacks; `Combined((Informed(), Glow()))`, one after the
            other. None: `Cellwise()` where there are as many data as an informed flow has
            directions, and not too many cells, else `Informed()`.
        method: How it learns: `Pool(...)`, `Emulator(...)`, `Fresh(objective, ...)`, or a name of
            one with its default options: `pool`, `emulator`, `pathwise`, `centred`, `score`
            (equations (10) and (11) as they stand), `reverse_kl`, `forward_kl`, `stein`. `auto`:
            for informed flows `pool`, but `emulator` for more variables than splines are made of,
            two (never for a problem that is a log-likelihood and has no observations); for whole
            networks `emulator` too, without derivative on up to 64 cells; without observations
            `pool` on up to 16 cells. Else `pathwise`, or `centred` without derivative.
        steps: Gradient steps per round of a method chosen by name; None: its own default.
        train: `all` flows up to the stage's scale, or only the `last` one.
        single_stage: Train the finest scale at once, from the prior (ablation "-S").
        conditioning: `exact` prior conditioning, or `nearest` (ablation "SNN"; not informed flows).
        rounds: Most rounds of a stage (a round: draw, simulate, update); None: as many as its share
            of the budget allows.
        round_size: Fields drawn per round; None: an eighth of an equal share of the budget, between
            200 and 4000; at the finest scale of its own share, up to as many as the certificate,
            but there a pool begins with as many as elsewhere, and doubles them.
        bridge_ess: Fraction of its fields that the weights of a model must be worth to lead on: the
            target of pools and fresh fields is tempered until they are (emulators need no bridge),
            and a coarser stage, a stepping stone, ends when its divergence says that they are.
        tolerance: The finest stage ends when its held-out Jeffreys estimate is below this.
        share: Part of what is left of the budget that a stage with finer ones behind it may use,
            and never less than an equal share; None: a half for flows of whole fields, whose steps
            take longer at each finer scale, else 0. Where it is not 0, a coarse stage ends when its
            estimate is below half of `tolerance`, or where the stage before ended: what cheaper
            steps could not learn is not tried again.
        patience: A stage ends after more rounds than this without improvement; n of them in all
            divide the learning rate by n + 1.
        go_back: Whether a stage goes on from its best model after an update that made it worse.
        certificate: Fields simulated at the end for the certificate, part of the budget; None: a
            twentieth of the budget, between 200 and 20,000.
        checkpoint_rounds: Rounds between checkpoints.
    """

    flow: FlowKind | None = None
    method: Method | str = "auto"
    steps: int | None = None
    train: str = "all"
    single_stage: bool = False
    conditioning: str = "exact"
    rounds: int | None = None
    round_size: int | None = None
    bridge_ess: float = 0.5
    tolerance: float = 1e-3
    share: float | None = None
    patience: int = 3
    go_back: bool = True
    certificate: int | None = None
    checkpoint_rounds: int = 1

    def __post_init__(self) -> None:
        checks.instance("flow", self.kind, FlowKind)
        if not isinstance(self.method, Method):
            checks.one_of("method", self.method, ("auto", *NAMED))
        checks.one_of("train", self.train, ("all", "last"))
        checks.one_of("conditioning", self.conditioning, ("exact", "nearest"))
        if self.conditioning == "nearest" and self.kind.needs_exact_conditioning:
            kind = type(self.kind).__name__
            raise ValueError(f"conditioning must be 'exact' with flow={kind}, got 'nearest'")
        for name in ("patience", "checkpoint_rounds"):
            checks.integer(name, getattr(self, name), 1)
        for name in ("rounds", "steps"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 1)
        for name in ("round_size", "certificate"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 16)
        checks.positive("tolerance", self.tolerance)
        if not 0 <= checks.finite("share", self.coarse_share) < 1:
            raise ValueError(f"share must be in [0, 1), got {self.share!r}")
        if not 0 < checks.finite("bridge_ess", self.bridge_ess) < 1:
            raise ValueError(f"bridge_ess must be in (0, 1), got {self.bridge_ess!r}")

    @classmethod
    def paper(cls, problem: str) -> "FitConfig":
        """The paper's algorithm as it stands, for `synthetic` or `elliptic` (appendix F)."""
        from msign.inference.presets import as_in_paper  # which makes options of this class

        return as_in_paper(problem)

    @property
    def kind(self) -> FlowKind:
        """What stands at each scale: `flow`, or an informed flow where none was chosen yet."""
        return Informed() if self.flow is None else self.flow

    def for_problem(self, problem: InverseProblem) -> "FitConfig":
        """The options with a flow that suits a problem, where none is given."""
        informed, cellwise = Informed(), Cellwise()
        rich = len(problem.data) >= informed.config.max_rank
        rich &= problem.dim <= cellwise.most_cells(problem)
        free = self.method == "auto" or self._named_method(problem, 1).needs_cells
        suits = rich and free and self.conditioning == "exact"
        chosen = self.flow or (cellwise if suits else informed)
        return dataclasses.replace(self, flow=chosen)

    def method_for(self, problem: InverseProblem, size: int) -> Method:
        """The method of a stage that trains `size` variables; refuses one that cannot work."""
        self.kind.check(problem)
        method = self._named_method(problem, size)
        if method.needs_derivative and not problem.differentiable:
            raise ValueError(
                f"method must not be {self.method!r}: the forward map has no derivative"
            )
        if method.needs_observations and not problem.has_observations:
            raise ValueError(
                f"method must not be {self.method!r}: the problem is a log-likelihood and has no "
                "observations to emulate (see 'pool')"
            )
        if method.needs_cells and not self.kind.has_cells:
            raise ValueError(
                f"method must not be {self.method!r} with flow={type(self.kind).__name__}: it is "
                "for Cellwise flows"
            )
        return method

    def _named_method(self, problem: InverseProblem, size: int) -> Method:
        """The method, by its name or by what the flow wants, whether it can work or not."""
        if not isinstance(self.method, str):
            return self.method
        name = self.kind.default_method(problem, size) if self.method == "auto" else self.method
        method = NAMED[name](problem.differentiable)
        return method if self.steps is None else dataclasses.replace(method, steps=self.steps)

    def certificate_size(self, budget: int) -> int:
        """Fields simulated for the certificate."""
        return self.certificate or int(np.clip(budget // 20, 200, 20_000))

    def round_of(self, share: int, most: int = 4000) -> int:
        """Fields of a round of a stage that has a share of the budget."""
        return self.round_size or int(np.clip(share // 8, 200, most))

    @property
    def coarse_share(self) -> float:
        """Part of what is left of the budget that a coarse stage may use; 0: an equal share."""
        if self.share is not None:
            return self.share
        return WHOLE_FIELDS if self.kind.whole_fields else 0.0

    def share_of(self, left: int, stages: int, least: int) -> int:
        """Simulations that the next of `stages` stages may use, of those that are left.

        What it has beyond an equal share leaves twice the `least` to each of the others.
        """
        more = min(int(self.coarse_share * left), left - 2 * least * (stages - 1))
        return left if stages == 1 else max(left // stages, more)

    def stepping_stone(self, before: float = 0.0) -> float:
        """Divergence at which the model of a coarser stage is good enough for the next.

        Log-normal weights of divergence J are worth exp(-J) of the fields. `before` is that with
        which the stage before ended.
        """
        if self.coarse_share:
            return max(INHERITED * self.tolerance, NOT_WORSE * before)
        return max(self.tolerance, -np.log(self.bridge_ess))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return _described(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "FitConfig":
        """Inverse of `to_json`."""
        config = _built(values)
        checks.instance("fit", config, cls)
        return config


def _described(value: Any) -> Any:
    """Nested option objects as dictionaries that name their class."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: _described(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    return [_described(v) for v in value] if isinstance(value, tuple) else value


def _built(value: Any) -> Any:
    """Inverse of `_described`; only classes of options are ever made."""
    if isinstance(value, list):
        return tuple(_built(v) for v in value)
    if not isinstance(value, dict):
        return value
    fields = {name: _built(v) for name, v in value.items() if name != "kind"}
    if value["kind"] not in OPTIONS:
        raise ValueError(f"kind must be one of {', '.join(OPTIONS)}, got {value['kind']!r}")
    return OPTIONS[value["kind"]](**fields)


# Every class whose objects may stand in a configuration.
OPTIONS: dict[str, type] = {
    **KINDS,
    **{
        option.__name__: option
        for option in (
            FitConfig,
            bijections.GlowConfig,
            bijections.InformedConfig,
            methods.Pool,
            methods.Cells,
            methods.Emulator,
            methods.Fresh,
            objectives.CentredJeffreys,
            objectives.PathwiseJeffreys,
            objectives.ScoreJeffreys,
            objectives.SteinObjective,
        )
    },
}
