"""Every block of Python in the documentation runs, every example too, and every name is told."""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import warnings

import jax
import numpy as np
import pytest

import msign
from msign.experiments.problem_file import load_problem_file
from msign.inference.config import OPTIONS

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page for page in sorted(DOCS.rglob("*.md"))}
OWN_TESTS = ("tutorial.md", "likelihoods.md", "arviz.md")  # in test_tutorial.py
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def smaller(monkeypatch, tmp_path):
    """`fit` and `refine` as the pages call them, with far less work."""
    fit, refine = msign.fit, msign.Posterior.refine

    def small_fit(problem, budget=0, seed=0, config=None, executor=None, **options):
        small = {"steps": 10, "round_size": 200, "certificate": 200, "rounds": 1}
        config = dataclasses.replace(config or msign.FitConfig(), **small)
        options = {"report": False, "progress": False, **options}
        return fit(problem, 2000, seed, config=config, executor=executor, **options)

    def small_refine(self, n, budget, **options):
        return refine(self, 20, 20_000, **{"progress": False, **options})

    monkeypatch.setattr(msign, "fit", small_fit)
    monkeypatch.setattr(msign.Posterior, "refine", small_refine)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", [n for n, p in PAGES.items() if blocks_of(p) and n not in OWN_TESTS]
)
def test_page(name, smaller):
    space: dict = {"__name__": "page"}
    for block in blocks_of(PAGES[name]):
        exec(compile(block, name, "exec"), space)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    problem = load_problem_file(path)
    assert problem.differentiable and problem.scales > 1
    draws = np.asarray(problem.prior.sample(jax.random.key(0), 3))
    assert np.isfinite(problem.log_likelihood(draws)).all()
    if problem.truth is not None:  # explains the data better than what the prior draws
        assert problem.log_likelihood(problem.truth[None]) > problem.log_likelihood(draws).max()


def test_examples_are_in_the_gallery():
    page = PAGES["gallery.md"].read_text()
    shown = re.findall(r"^# file: examples/(\w+)\.py$", page, re.MULTILINE)
    assert set(shown) == {path.stem for path in EXAMPLES}


def test_links_lead_somewhere():
    for page in [*PAGES.values(), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# --- the reference --------------------------------------------------------------------------------


def documented():
    """Objects whose docstrings are in the reference."""
    for page in PAGES.values():
        for path in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            module, name = path.rsplit(".", 1)
            yield name, getattr(importlib.import_module(module), name)


def test_public_names_are_in_the_reference():
    names = {name for name, _ in documented()}
    assert set(msign.__all__) - {"likelihoods", "problems"} <= names
    assert set(msign.likelihoods.__all__) - {"Likelihood"} <= names


def test_options_are_in_their_docstrings():
    for name, found in documented():
        if inspect.isabstract(found) or name in ("Posterior", "Prior"):
            continue  # made by others
        for option in inspect.signature(found).parameters:
            line = rf"^ +(\w+, )*{option}(, \w+)*: "
            assert re.search(line, found.__doc__ or "", re.MULTILINE), f"{name}: {option}"


def test_arviz_summary_has_no_warnings(smaller):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of ArviZ 0.x about 1.x, when imported
        import arviz as az
    posterior = msign.fit(msign.problems.synthetic(size=4))
    for n in (400, 90):  # in four chains and in three
        data = posterior.to_arviz(n, simulate=True)
        data.to_netcdf("samples.nc")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = az.summary(az.from_netcdf("samples.nc"))
        assert len(table) == 16 and np.isfinite(table["mean"].astype(float)).all()


def policy_names():
    """Constants of modules and numeric options of classes of `inference`, with their modules."""
    for path in sorted((ROOT / "src/msign/inference").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Dict):
                targets = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
                numeric = any(
                    isinstance(n, ast.Constant) and isinstance(n.value, int | float)
                    for n in ast.walk(node.value)
                )
                yield from ((path.stem, name) for name in targets if numeric and name.isupper())
            elif isinstance(node, ast.ClassDef) and node.name in OPTIONS:
                yield from (
                    (path.stem, field.name)
                    for field in dataclasses.fields(OPTIONS[node.name])
                    if isinstance(field.default, int | float)
                    and not isinstance(field.default, bool)
                )


def test_every_number_of_the_engine_is_in_the_policy():
    text = (DOCS / "architecture.md").read_text()
    policy = text[text.index("### Policy") : text.index("### What a second")]
    known = set(re.findall(r"`[\w.]*?(\w+)`", policy))
    elsewhere = {  # layouts, keys, and the two sides of a divergence
        "export": {"CHAINS", "PRIOR_KEY", "NOISE_SEEDS"},
        "objectives": {"reverse", "forward"},
    }
    missing = [
        (module, name)
        for module, name in policy_names()
        if name not in known and name not in elsewhere.get(module, ())
    ]
    assert not missing
