"""Forward maps behind UM-Bridge, an HTTP protocol for models in any language.

A server that is away for a while costs a pause, not the run.
"""

import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.priors import Prior
from msign.problems.failures import SimulatorUnavailable
from msign.problems.inverse import InverseProblem

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds between attempts to reach a server
AWAY = (429, 502, 503, 504)  # answers of balancers and proxies whose server is busy or restarting
TIMEOUTS = 3  # of one field, before its simulation counts as one that failed
WHILE_ASKING = 10.0  # seconds to wait for a server at the start, when it should be there


class Address(NamedTuple):
    """Where a model is, and how long to wait for it.

    Attributes:
        url: Of the server.
        name: Of the model.
        config: Sent with every request.
        parallel: Requests at a time.
        timeout: Seconds for one answer.
        patience: Seconds for which a server may be away.
    """

    url: str
    name: str
    config: dict[str, Any]
    parallel: int
    timeout: float
    patience: float


class RemoteModel:
    """A model of a UM-Bridge server, as a forward map of batches.

    Fields are flattened and cut into the input vectors of the model; its output vectors are put
    behind each other.
    """

    def __init__(self, address: Address):
        self.address = address
        patience = min(address.patience, WHILE_ASKING)
        support = self._ask("ModelInfo", {}, patience)["support"]
        if not support.get("Evaluate", False):
            raise ValueError(f"model_name must name a model that evaluates, got {address.name!r}")
        self.differentiable = bool(support.get("Gradient", False))
        about = {"config": address.config}
        self.inputs = [int(n) for n in self._ask("InputSizes", about, patience)["inputSizes"]]
        self.outputs = [int(n) for n in self._ask("OutputSizes", about, patience)["outputSizes"]]

    def __getstate__(self) -> dict[str, Any]:
        """State to send to workers: without open connections."""
        return {k: v for k, v in vars(self).items() if k != "_session"}

    def forward(self, x: ArrayLike) -> np.ndarray:
        """Observations `(n, m)` of fields."""
        return self._for_each(self._evaluated, np.asarray(x, np.float64))

    def vjp(self, x: ArrayLike, cotangents: ArrayLike) -> np.ndarray:
        """The transposed derivative at fields, applied to cotangents `(n, m)`."""
        fields = np.asarray(x, np.float64)
        pulled = self._for_each(self._pulled, fields, np.asarray(cotangents, np.float64))
        return pulled.reshape(fields.shape)

    def _for_each(self, function: Any, *batches: np.ndarray) -> np.ndarray:
        with ThreadPoolExecutor(min(self.address.parallel, len(batches[0]))) as pool:
            try:
                return np.stack(list(pool.map(function, *batches)))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _evaluated(self, field: np.ndarray) -> np.ndarray:
        answer = self._asked("Evaluate", {"input": _cut(field, self.inputs)})
        if [len(vector) for vector in answer] != self.outputs:
            raise RuntimeError(
                f"{self.address.name} must answer with vectors of lengths {self.outputs}, "
                f"got {checks.shortened(answer)}"
            )
        return np.concatenate([np.asarray(vector, np.float64) for vector in answer])

    def _pulled(self, field: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        parts, given = _cut(cotangent.reshape(-1), self.outputs), _cut(field, self.inputs)
        return np.concatenate(
            [
                sum(self._slope(given, out, own, i) for out, own in enumerate(parts))
                for i in range(len(self.inputs))
            ]
        )

    def _slope(self, given: list[list[float]], out: int, sens: list[float], i: int) -> np.ndarray:
        """The gradient with respect to one input vector of one output vector times `sens`."""
        request = {"input": given, "outWrt": out, "inWrt": i, "sens": sens}
        return np.asarray(self._asked("Gradient", request), np.float64)

    # --- requests ---------------------------------------------------------------------------------

    def _asked(self, what: str, request: dict[str, Any]) -> Any:
        given = {"config": self.address.config, **request}
        return self._ask(what, given, self.address.patience)["output"]

    @functools.cached_property
    def _session(self) -> Any:
        import requests

        session = requests.Session()
        session.mount(
            self.address.url, requests.adapters.HTTPAdapter(pool_maxsize=self.address.parallel)
        )
        return session

    def _ask(self, what: str, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """The answer to a request; waits, longer each time, for a server that is away."""
        import requests

        address, pause, timeouts, away_since = self.address, FIRST_PAUSE, 0, None
        away = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
        while True:
            try:
                answer = self._session.post(
                    f"{address.url}/{what}",
                    json={"name": address.name, **request},
                    timeout=address.timeout,
                )
                if answer.status_code not in AWAY:
                    return _understood(answer, address)
                why = f"it answers {answer.status_code} {answer.reason}"
            except requests.ReadTimeout:
                timeouts += 1
                if timeouts == TIMEOUTS:
                    raise RuntimeError(
                        f"{address.name} gave no answer in {address.timeout:g} s, {timeouts} times"
                    ) from None
                continue
            except away as error:
                why = checks.shortened(str(error), 160)
            now = time.monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since + pause > patience:
                raise SimulatorUnavailable(
                    f"url must be that of a UM-Bridge server that answers, got {address.url!r}, "
                    f"away for {patience:g} seconds: {why}"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def umbridge(
    url: str,
    model_name: str,
    prior: Prior,
    data: ArrayLike | Sequence[float],
    noise_std: ArrayLike | None = None,
    *,
    config: dict[str, Any] | None = None,
    parallel: int = 8,
    timeout: float = 3600.0,
    patience: float = 3600.0,
    **options: Any,
) -> InverseProblem:
    """The inverse problem whose forward map is a model of a UM-Bridge server.

    Args:
        url: Of the server, as `http://localhost:4242`.
        model_name: Of the model on it.
        prior: Of the field; a field is sent flat, row by row, cut into the model's input vectors.
        data: Observations, as long as all output vectors of the model.
        noise_std: Standard deviation of Gaussian noise.
        config: Sent with every request.
        parallel: Requests at a time; a server behind a balancer can use many.
        timeout: Seconds after which an answer is asked for again, and at the third time given up
            as a simulation that failed.
        patience: Seconds for which the server may be away, restarting, say, before a run ends.
        options: Of `InverseProblem`: `noise_cov`, `likelihood`, `on_failure`, `inflate`, ...

    The model's gradient is used where it has one. A simulation that fails there is one that
    raises: see `on_failure`.
    """
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {checks.shortened(url)}")
    checks.instance("config", {} if config is None else config, dict)
    address = Address(
        url.rstrip("/"),
        model_name,
        {} if config is None else config,
        checks.integer("parallel", parallel, 1),
        checks.positive("timeout", timeout),
        checks.positive("patience", patience),
    )
    model = RemoteModel(address)
    checks.instance("prior", prior, Prior)
    if sum(model.inputs) != prior.lattice.dim:
        raise ValueError(
            f"prior must have as many values as {model_name!r} has inputs, {model.inputs}, "
            f"got {prior.lattice.dim}"
        )
    if sum(model.outputs) != np.size(data):
        raise ValueError(
            f"data must be as many as {model_name!r} has outputs, {model.outputs}, "
            f"got {np.size(data)}"
        )
    given = {"name": model_name, "vjp": model.vjp if model.differentiable else None, **options}
    return InverseProblem(prior, model.forward, np.reshape(data, -1), noise_std, **given)


def _cut(vector: np.ndarray, sizes: list[int]) -> list[list[float]]:
    """Consecutive parts of a vector, as JSON has them."""
    return [part.tolist() for part in np.split(vector.reshape(-1), np.cumsum(sizes)[:-1])]


def _understood(answer: Any, address: Address) -> dict[str, Any]:
    """What a server says; an error of the model raises, as a simulation does that fails."""
    try:
        content = answer.json()
    except ValueError:
        text = checks.shortened(answer.text, 160)
        raise RuntimeError(f"{address.name} answered {answer.status_code}: {text}") from None
    if "error" in content:
        error = content["error"]
        raise RuntimeError(f"{address.name}: {error.get('type')}: {error.get('message')}")
    return content
