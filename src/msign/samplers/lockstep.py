"""JAX functions that stop where they need a simulation: BlackJAX kernels for any forward map.

A forward map may be a NumPy function, or a program on another machine, and a `Simulator` has to
count its simulations. Callbacks from compiled code do neither safely: on one core JAX waits for
ever for the callback's own arguments, and a loop over many chains at once simulates those that
have ended. So a kernel is traced once, with `log_likelihood` in it, and its program is run piece by
piece: what lies between two simulations is compiled, loops and branches around a simulation are
run by Python, and the simulation itself is handed to whoever runs the program, who may gather
those of many chains and drop a program for which the budget does not last.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.extend.core import primitives
from jax.interpreters import batching
from jaxtyping import ArrayLike

Values = list[Any]


class Request(NamedTuple):
    """Fields to be simulated.

    Attributes:
        u: Whitened coordinates `(d,)` or `(n, d)`.
        gradient: Whether the gradient of the log-likelihood is wanted, too.
    """

    u: jax.Array
    gradient: bool


class Answer(NamedTuple):
    """What was found: log-likelihoods `()` or `(n,)`, and gradients as the fields, if wanted.

    Both of the type that the fields have.
    """

    value: ArrayLike
    gradient: ArrayLike | None


Paused = Generator[Request, Answer, Values]

# --- the log-likelihood in a program --------------------------------------------------------------

simulate_p = core.Primitive("simulate")
simulate_p.multiple_results = True


def _simulated_shapes(u: Any, *, gradient: bool) -> list[Any]:
    value = u.update(shape=u.shape[:-1])
    return [value, u] if gradient else [value]


def _simulated_batch(args: Any, dims: Any, *, gradient: bool) -> Any:
    u = jnp.moveaxis(args[0], dims[0], 0)
    found = simulate_p.bind(u, gradient=gradient)
    return found, [0] * len(found)


simulate_p.def_abstract_eval(_simulated_shapes)
batching.primitive_batchers[simulate_p] = _simulated_batch


@jax.custom_vjp
def log_likelihood(u: jax.Array) -> jax.Array:
    """Log-likelihood of one field in whitened coordinates, for programs that pause."""
    return simulate_p.bind(u, gradient=False)[0]


def _with_gradient(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = simulate_p.bind(u, gradient=True)
    return value, gradient


log_likelihood.defvjp(_with_gradient, lambda gradient, seed: (seed * gradient,))


def log_posterior(u: jax.Array) -> jax.Array:
    """Log-density of the posterior of one field, up to a constant."""
    return log_likelihood(u) - 0.5 * jnp.sum(u**2)


# --- programs -------------------------------------------------------------------------------------


class Program:
    """A JAX function that pauses for simulations.

    Args:
        function: Of arrays, or trees of them, with `log_likelihood` in it.
        example: Arguments, for shapes and types.

    Example:
        >>> import jax.numpy as jnp
        >>> from msign.samplers.lockstep import Answer, Program, log_likelihood
        >>> program = Program(lambda u: 2 * log_likelihood(u), jnp.zeros(3))
        >>> paused = program.start(jnp.ones(3))
        >>> next(paused).u.shape
        (3,)
        >>> try:
        ...     paused.send(Answer(jnp.asarray(1.5), None))
        ... except StopIteration as end:
        ...     print(end.value)
        3.0
    """

    def __init__(self, function: Callable[..., Any], *example: Any):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*example)
        self._block = _Block(closed)
        self._tree = jax.tree.structure(shapes)

    def start(self, *args: Any) -> Generator[Request, Answer, Any]:
        """Run it on arguments like the example, up to the first request."""
        found = yield from self._block.run(jax.tree.leaves(args))
        return jax.tree.unflatten(self._tree, found)


class _Compiled(NamedTuple):
    """Equations without a simulation, compiled as one function."""

    function: Callable[..., Values]
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        return self.function(*given)
        yield  # a generator like all other steps


class _Simulation(NamedTuple):
    gradient: bool
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        answer = yield Request(given[0], self.gradient)
        return [answer.value, answer.gradient] if self.gradient else [answer.value]


class _Inlined(NamedTuple):
    body: "_Block"
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        return (yield from self.body.run(given))


class _Branch(NamedTuple):
    branches: list["_Block"]
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        return (yield from self.branches[int(given[0])].run(given[1:]))


class _While(NamedTuple):
    condition: Callable[..., Values]
    body: "_Block"
    constants: tuple[int, int]  # of the condition, of the body
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        first, second = self.constants
        of_condition, of_body = given[:first], given[first : first + second]
        carry = given[first + second :]
        while bool(self.condition(*of_condition, *carry)[0]):
            carry = yield from self.body.run([*of_body, *carry])
        return carry


class _Scan(NamedTuple):
    """A loop of known length that goes over no array and stacks none."""

    body: "_Block"
    length: int
    constants: int
    inputs: list[Any]
    outputs: list[Any]

    def run(self, given: Values) -> Paused:
        fixed, carry = given[: self.constants], given[self.constants :]
        for _ in range(self.length):
            carry = yield from self.body.run([*fixed, *carry])
        return carry


class _Block:
    """A traced program as steps, those between two simulations compiled together."""

    def __init__(self, closed: core.ClosedJaxpr):
        jaxpr = closed.jaxpr
        self._inputs, self._outputs = jaxpr.invars, jaxpr.outvars
        self._constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self._steps: list[Any] = []
        waiting: list[core.JaxprEqn] = []
        for i, equation in enumerate(jaxpr.eqns):
            if not _simulates(equation):
                waiting.append(equation)
                continue
            self._compile(waiting, jaxpr.eqns[i:])
            self._steps.append(_step(equation))
            waiting = []
        self._compile(waiting, [])

    def run(self, given: Values) -> Paused:
        values = {**self._constants, **dict(zip(self._inputs, given, strict=True))}
        for step in self._steps:
            found = yield from step.run(_read(values, step.inputs))
            values.update(zip(step.outputs, found, strict=True))
        return _read(values, self._outputs)

    def _compile(self, equations: list[core.JaxprEqn], later: list[core.JaxprEqn]) -> None:
        if not equations:
            return
        made = {v: None for e in equations for v in e.outvars if not isinstance(v, core.DropVar)}
        used = _variables(e.invars for e in equations)
        wanted = _variables([*(e.invars for e in later), self._outputs])
        inputs = [v for v in used if v not in made]
        outputs = [v for v in made if v in wanted]
        names = core.DebugInfo("between simulations", "", None, None)
        part = core.Jaxpr((), inputs, outputs, equations, debug_info=names)
        function = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, ())))
        self._steps.append(_Compiled(function, inputs, outputs))


def _step(equation: core.JaxprEqn) -> Any:
    """An equation with a simulation in it as a step."""
    params, ends = equation.params, (equation.invars, equation.outvars)
    kind = equation.primitive
    if kind is simulate_p:
        return _Simulation(params["gradient"], *ends)
    if kind is primitives.jit_p:
        return _Inlined(_Block(params["jaxpr"]), *ends)
    if kind is primitives.custom_vjp_call_p:
        return _Inlined(_Block(params["call_jaxpr"]), *ends)
    if kind is primitives.cond_p:
        return _Branch([_Block(b) for b in params["branches"]], *ends)
    if kind is primitives.while_p and not _has_simulation(params["cond_jaxpr"].jaxpr):
        condition = jax.jit(core.jaxpr_as_fun(params["cond_jaxpr"]))
        counts = params["cond_nconsts"], params["body_nconsts"]
        return _While(condition, _Block(params["body_jaxpr"]), counts, *ends)
    if kind is primitives.scan_p:
        carried = len(equation.invars) - params["num_consts"]
        if carried == params["num_carry"] == len(equation.outvars):
            body = _Block(params["jaxpr"])
            return _Scan(body, params["length"], params["num_consts"], *ends)
    raise NotImplementedError(f"a simulation inside of {kind.name} cannot be paused for")


def _simulates(equation: core.JaxprEqn) -> bool:
    if equation.primitive is simulate_p:
        return True
    return any(_has_simulation(part) for part in core.jaxprs_in_params(equation.params))


def _has_simulation(jaxpr: core.Jaxpr) -> bool:
    return any(_simulates(equation) for equation in jaxpr.eqns)


def _variables(groups: Iterable[Iterable[Any]]) -> dict[Any, None]:
    return {v: None for group in groups for v in group if not isinstance(v, core.Literal)}


def _read(values: Mapping[Any, Any], variables: Iterable[Any]) -> Values:
    return [v.val if isinstance(v, core.Literal) else values[v] for v in variables]
