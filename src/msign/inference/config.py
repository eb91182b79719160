"""Options of `fit`, validated when made."""

import dataclasses
from typing import Any, cast

from msign import checks
from msign.bijections.glow import GlowConfig
from msign.bijections.subspace import InformedConfig

FLOWS = ("informed", "glow", "both")
OBJECTIVES = (
    "auto",
    "pool",
    "emulator",
    "pathwise",
    "centred",
    "score",
    "reverse_kl",
    "forward_kl",
    "stein",
)
UNITS = 16 * 32  # hidden channels of all trained blocks up to which Glow takes full steps


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How a posterior is trained.

    Attributes:
        flow: `informed`: flows on the likelihood-informed subspace, carried from scale to scale;
            `glow`: the paper's Glow stacks, one per scale; `both`: at each scale an informed flow
            and then a Glow stack.
        objective: `pool`: Jeffreys divergence on a re-used pool; `emulator`: on fresh samples of a
            polynomial emulator fitted to such a pool (informed flows); `pathwise`, `centred`: its
            low-variance forms on fresh samples; `score`: equations (10) and (11) as they stand;
            `reverse_kl`, `forward_kl`: one side alone; `stein`: amortized SVGD. `auto`: for
            informed flows pool, but emulator for more than two trained variables and up to 512
            observations; for Glow pool at scales 1 and 2, pathwise (centred without derivatives)
            above.
        train: `all` flows up to the stage's scale, or only the `last` one (Glow).
        single_stage: Train the finest scale at once, from the prior (ablation "-S").
        conditioning: `exact` prior conditioning, or `nearest` (ablation "SNN"; Glow only).
        informed: Hyper-parameters of informed flows.
        glow: Hyper-parameters of Glow flows.
        subspace_samples: Fields whose gradients find the informed subspace at each scale.
        subspace_tolerance: Nats that may be lost by leaving directions out.
        rounds: Most rounds of a stage (a round: draw, simulate, update).
        round_size: Fields drawn per round; None: an eighth of an equal share of the budget, between
            200 and 4000; at the finest scale, where there is budget, as many as the certificate.
        steps: Gradient steps per round; None: 400, but 1200 for informed flows of up to 4 variables
            on a pool with room for 30,000 fields or more, and 600 on an emulator.
        batch_size: Fields per gradient step. None: fresh draws 100; emulated draws 256; minibatches
            of the pool 2048 for informed flows of up to 4 variables, else 512, but at most a
            quarter of the pool's capacity.
        learning_rate: Of Adam; None: 5e-3 for informed flows of up to 4 variables, else 2e-3; for
            Glow 2e-3 up to 512 trained units (hidden channels of all blocks), and beyond that in
            inverse proportion to them.
        clip_norm: Largest norm of a gradient.
        averaging: Decay of the running average of weights that is kept (0: none).
        bridge_ess: Bridge the target until the weights are worth this fraction of a round.
        tolerance: A stage ends when its held-out Jeffreys estimate is below this for each trained
            variable (at the finest scale: below this in all, and k-hat below 0.5).
        patience: A stage ends after so many rounds without improvement.
        certificate: Fields simulated at the end for the certificate, part of the budget; None: a
            twentieth of the budget, between 200 and 20,000.
        checkpoint_rounds: Rounds between checkpoints.
    """

    flow: str = "informed"
    objective: str = "auto"
    train: str = "all"
    single_stage: bool = False
    conditioning: str = "exact"
    informed: InformedConfig = dataclasses.field(default_factory=InformedConfig)
    glow: GlowConfig = dataclasses.field(default_factory=GlowConfig)
    subspace_samples: int = 300
    subspace_tolerance: float = 0.01
    rounds: int = 16
    round_size: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    clip_norm: float = 1.0
    averaging: float = 0.0
    bridge_ess: float = 0.25
    tolerance: float = 1e-3
    patience: int = 3
    certificate: int | None = None
    checkpoint_rounds: int = 1

    def __post_init__(self) -> None:
        checks.one_of("flow", self.flow, FLOWS)
        checks.one_of("objective", self.objective, OBJECTIVES)
        checks.one_of("train", self.train, ("all", "last"))
        checks.one_of("conditioning", self.conditioning, ("exact", "nearest"))
        if self.conditioning == "nearest" and self.flow != "glow":
            raise ValueError(f"flow must be 'glow' with conditioning='nearest', got {self.flow!r}")
        if self.objective == "emulator" and self.flow != "informed":
            raise ValueError(f"flow must be 'informed' for objective='emulator', got {self.flow!r}")
        for name in ("subspace_samples", "rounds", "patience", "checkpoint_rounds"):
            checks.integer(name, getattr(self, name), 1)
        if self.steps is not None:
            checks.integer("steps", self.steps, 1)
        if self.batch_size is not None:
            checks.integer("batch_size", self.batch_size, 2)
        for name in ("round_size", "certificate"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 16)
        if self.learning_rate is not None:
            checks.positive("learning_rate", self.learning_rate)
        for name in ("clip_norm", "subspace_tolerance", "tolerance"):
            checks.positive(name, getattr(self, name))
        if not 0 <= checks.finite("averaging", self.averaging) < 1:
            raise ValueError(f"averaging must be in [0, 1), got {self.averaging!r}")
        if not 0 < checks.finite("bridge_ess", self.bridge_ess) < 1:
            raise ValueError(f"bridge_ess must be in (0, 1), got {self.bridge_ess!r}")

    def _tiny(self, size: int) -> bool:
        """Whether a flow is so small that long training on large batches costs next to nothing."""
        return self.flow == "informed" and size <= 4

    def flow_step(self, size: int) -> float:
        """Step size of Adam on an informed flow of so many variables."""
        return self.learning_rate or (5e-3 if self._tiny(size) else 2e-3)

    def network_step(self, scale: int, scales: int) -> float:
        """Step size of Adam on a network's flows up to a scale.

        Adam moves all parameters alike, so that outputs move in proportion to depth and width.
        """
        first = scale if self.train == "last" else 1
        trained = [self.glow.at(l, scales) for l in range(first, scale + 1)]
        units = sum(cast(int, g.blocks) * cast(int, g.hidden) for g in trained)
        return self.learning_rate or 2e-3 * min(1.0, UNITS / max(units, 1))

    def pool_batch(self, size: int, capacity: int) -> int:
        """Fields per gradient step on a pool, for so many trained variables."""
        return self.batch_size or min(2048 if self._tiny(size) else 512, max(64, capacity // 4))

    def pool_steps(self, size: int, capacity: int) -> int:
        """Gradient steps per round on a pool, for so many trained variables."""
        return self.steps or (1200 if self._tiny(size) and capacity >= 30_000 else 400)

    @property
    def emulator_steps(self) -> int:
        """Gradient steps per round on an emulator."""
        return self.steps or 600

    @property
    def emulator_batch(self) -> int:
        """Fields per gradient step on an emulator."""
        return self.batch_size or 256

    @property
    def fresh_steps(self) -> int:
        """Gradient steps per round on fresh draws."""
        return self.steps or 400

    @property
    def fresh_batch(self) -> int:
        """Fields per gradient step on fresh draws (the paper's minibatch)."""
        return self.batch_size or 100

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "FitConfig":
        """Inverse of `to_json`."""
        plain = dict(values)
        plain["informed"] = InformedConfig(**plain["informed"])
        glow: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in plain["glow"].items()
        }
        plain["glow"] = GlowConfig(**glow)
        return cls(**plain)
