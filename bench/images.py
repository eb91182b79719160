"""Image synthesis: memory of a training step, and MsIGN side by side with Glow.

    python bench/images.py memory                    # K = 32 against K = 8 at 64 x 64 x 3, batch 16
    python bench/images.py preset celeba128          # builds, steps, saves and resumes in 16 GB
    python bench/images.py compare mnist --data-dir DIR --minutes 60
    python bench/images.py compare cifar10 --data-dir DIR --minutes 60
    python bench/images.py gradient RUN --data-dir DIR

`memory` compiles a step of the last stage in a process of its own for each row, and prints what XLA
reserves for its temporaries (activations and gradients), the same with weights, their average and
Adam's state, the peak of the whole process, and the shortest time of a step. `compare` trains both
models with as many blocks, hidden channels and scales for as long by the clock, earlier stages
included; epochs follow from the time of a step, measured first. `gradient` compares the derivative
of a trained model, with activations computed again, with the one that keeps them.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time

RECOMPUTE = ("nothing", "blocks", "inversion")


# --- memory -------------------------------------------------------------------------------------


def memory_worker(options) -> None:
    import jax
    import jax.random as jr
    import numpy as np

    from msign.images import Moments, Pixels, Setting, build_model
    from msign.images.model import split_trainable
    from msign.images.step import Weights, make_step, on_all_devices, optimiser_of

    side, batch, scales = options.side, options.batch, options.scales
    setting = Setting().changed(
        model=options.model,
        scales=scales,
        blocks=options.blocks[0],
        hidden=options.hidden,
        batch=batch,
        part=options.part or batch,
        recompute=options.recompute,
    )
    training = setting.training
    moments = Moments(0.0, 0.2, (np.asarray(0.2),) * (scales - 1), 1)
    model = build_model(setting.architecture, (side, side, 3), moments)
    optimiser = optimiser_of(training, 100, True)
    params, rest = split_trainable(model, scales)
    weights = on_all_devices(Weights(params, params, optimiser.init(params)))
    step = make_step(rest, scales, Pixels(), training, optimiser, side * side * 3)
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    analysis = step.compiled(weights, images, jr.key(0), 0).memory_analysis()
    times = []
    for number in range(1 + options.steps):
        start = time.perf_counter()
        weights, loss = step(weights, images, jr.key(0), number)
        jax.block_until_ready(loss)
        times.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reserved = (
        analysis.temp_size_in_bytes
        + analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    found = {"temporaries": analysis.temp_size_in_bytes, "reserved": reserved}
    found |= {"peak": 1024 * after, "step": min(times[1:])}
    print(json.dumps(found | {"parameters": sum(model.parameters())}))


def memory(options) -> None:
    print(
        f"one training step, {options.side} x {options.side} x 3, batch {options.batch}, "
        f"{options.scales} scales, {options.hidden} hidden channels, {options.model}"
    )
    head = (
        "recompute",
        "K",
        "parameters",
        "temporaries MB",
        "with weights",
        "process MB",
        "step s",
    )
    print("".join(f"{name:>16}" for name in head))
    for what in options.kinds:
        rows = []
        for blocks in options.blocks:
            arguments = ["memory", "--worker", "--recompute", what, "--blocks", blocks]
            for name in ("side", "batch", "scales", "hidden", "steps", "model", "part"):
                if getattr(options, name) is not None:
                    arguments += [f"--{name}", getattr(options, name)]
            rows.append(_run_worker(arguments))
            r = rows[-1]
            megabytes = [f"{r[n] / 1e6:.0f}" for n in ("temporaries", "reserved", "peak")]
            cells = (what, blocks, f"{r['parameters']:,}", *megabytes, f"{r['step']:.2f}")
            print("".join(f"{cell:>16}" for cell in cells), flush=True)
        last, first = options.blocks[-1], options.blocks[0]
        names = {"temporaries": "temporaries", "reserved": "with weights", "peak": "process"}
        ratios = [f"{name} {rows[-1][n] / rows[0][n]:.2f}" for n, name in names.items()]
        print(f"{what:>16}  K={last} over K={first}: {', '.join(ratios)}", flush=True)


def _run_worker(arguments) -> dict:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# --- the derivative of a trained model ----------------------------------------------------------


def gradient(options) -> None:
    """Relative differences, in float32, to the derivative that keeps all activations."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    import numpy as np

    from msign.bijections.recompute import recomputing
    from msign.experiments.images import images_of
    from msign.images import ImageRun
    from msign.images.model import join, split_trainable
    from msign.images.step import bits_of

    run = ImageRun.existing(options.run)
    model, pixels, values = run.model(), run.pixels(), run.read_config()["values"]
    images = images_of(run, options.data_dir).test.read(np.arange(options.batch))
    noise = jr.uniform(jr.key(0), images.shape)
    params, rest = split_trainable(model, model.scales)

    def of(kind: str) -> np.ndarray:
        @eqx.filter_jit
        def slope(params, rest):
            def loss(params):
                it = recomputing(join(params, rest, model.scales), kind)
                return bits_of(it, pixels, jnp.asarray(images), noise, it.scales, values).mean()

            return jax.grad(loss)(params)

        return np.concatenate([np.ravel(g) for g in jax.tree.leaves(slope(params, rest))])

    kept = of("nothing")
    for kind in RECOMPUTE[1:]:
        error = np.linalg.norm(of(kind) - kept) / np.linalg.norm(kept)
        print(f"{kind:>12}: relative difference of the gradient {error:.1e}", flush=True)


# --- a preset on made-up images -----------------------------------------------------------------


def preset(options) -> None:
    """Steps of a preset's last stage on made-up images, killed after the first one and resumed."""
    import numpy as np

    from msign.images import PRESETS, ImageRun, StoredImages, train

    side = {"mnist": 28, "cifar10": 32, "imagenet32": 32, "celeba128": 128}.get(options.name, 64)
    channels = 1 if options.name == "mnist" else 3
    setting = PRESETS[options.name].changed(
        batch=options.batch,
        epochs=1,
        stage_epochs=0,
        validation=1,
        samples=1,
        checkpoint_seconds=0.0,
    )
    n = 1 + options.steps * options.batch
    coarse = np.random.default_rng(0).normal(size=(max(n, 5), side // 4, side // 4, channels))
    smooth = 128 + 40 * coarse.repeat(4, 1).repeat(4, 2)
    smooth += 10 * np.random.default_rng(1).normal(size=smooth.shape)
    images = StoredImages([np.clip(smooth, 0, 255).astype(np.uint8)])
    save = ImageRun.save_checkpoint

    def save_and_die(run, *arguments) -> None:
        save(run, *arguments)
        raise KeyboardInterrupt

    start = time.perf_counter()
    ImageRun.save_checkpoint = save_and_die
    try:
        train(images, setting, options.out)
    except KeyboardInterrupt:
        print(f"killed after one step and {time.perf_counter() - start:.0f} s", flush=True)
    ImageRun.save_checkpoint = save
    trained = train(images, setting, options.out, resume=True)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    last = trained.records[-1]
    print(
        f"{options.name}: {sum(trained.model.parameters()):,} parameters, {last['step']} steps of "
        f"{options.batch} images, {last['train_bits']:.3f} bits/dim, {seconds:.0f} s, peak of the "
        f"process {peak:.2f} GB"
    )


# --- MsIGN and Glow -----------------------------------------------------------------------------


def seconds_per_step(images, setting, stage: int, steps: int = 6) -> float:
    """Of a stage, after compilation."""
    import jax
    import jax.random as jr
    import numpy as np

    from msign.images import Pixels, build_model, estimate_moments
    from msign.images.model import split_trainable
    from msign.images.step import Weights, make_step, on_all_devices, optimiser_of

    architecture, training = setting.architecture, setting.training
    pixels = Pixels.with_bits(images.levels, architecture.bits, architecture.output)
    moments = estimate_moments(images, pixels, architecture.scales, count=500)
    model = build_model(architecture, images.shape, moments)
    optimiser = optimiser_of(training, 100, True)
    params, rest = split_trainable(model, stage)
    weights = on_all_devices(Weights(params, params, optimiser.init(params)))
    step = make_step(rest, stage, pixels, training, optimiser, int(np.prod(images.shape)))
    batch = images.read(np.arange(training.batch))
    times = []
    for number in range(steps):
        start = time.perf_counter()
        weights, loss = step(weights, batch, jr.key(0), number)
        jax.block_until_ready(loss)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def compare(options) -> None:
    from msign.experiments.images import setting_of, train_run
    from msign.images import ImageRun, load_images
    from msign.images.model import stages_of

    chosen = setting_of(
        options.data,
        scales=options.scales,
        blocks=options.blocks,
        hidden=options.hidden,
        output=options.output,
        stage_epochs=options.stage_epochs,
        learning_rate=options.learning_rate,
        decay=options.decay,
        coordinates=options.coordinates,
        per_band=options.per_band or None,
        recompute=options.recompute,
    )
    images = load_images(options.data, options.data_dir).train
    per_epoch = len(images) // chosen.training.batch
    found = {}
    for kind in options.models:
        setting = chosen.changed(model=kind)
        out = pathlib.Path(options.out) / f"{options.data}-{kind}"
        if (out / "config.json").exists():  # interrupted: as many epochs as were chosen before
            setting = ImageRun.existing(out).setting()
        elif options.epochs:
            setting = setting.changed(epochs=options.epochs)
        else:
            scales = setting.architecture.scales
            early = range(1, scales) if kind == "msign" and setting.training.stage_epochs else ()
            left = 60 * options.minutes - sum(
                seconds_per_step(images, setting, stage) * per_epoch * setting.training.stage_epochs
                for stage in early
            )
            epoch = seconds_per_step(images, setting, scales) * per_epoch
            setting = setting.changed(epochs=max(1, round(left / epoch)))
        print(f"{kind}: {setting.training.epochs} epochs at the last stage", flush=True)
        for line in train_run(
            options.data, options.data_dir, None, setting, out, options.seed, resume=True
        ):
            print(f"  {line}", flush=True)
        run = ImageRun.existing(out)
        evaluation = json.loads((out / "evaluation.json").read_text())
        log = run.read_log()
        stages = stages_of(run.model(), setting.training.stage_epochs)
        seconds = sum(max(r["seconds"] for r in log if r["stage"] == s) for s in stages)
        found[kind] = {**evaluation, "seconds": seconds, "log": log}
    _print_comparison(found, options)


def _print_comparison(found: dict, options) -> None:
    print(f"\n{options.data}, seed {options.seed}")
    head = ("", "test bits/dim", "+-", "parameters", "minutes", "epochs", "round trip")
    print("".join(f"{name:>15}" for name in head))
    for kind, result in found.items():
        cells = (
            kind,
            f"{result['bits_per_dim']:.4f}",
            f"{result['standard_error']:.4f}",
            f"{result['parameters']:,}",
            f"{result['seconds'] / 60:.1f}",
            result["log"][-1]["epoch"],
            f"{result['round_trip_largest_error']:.1e}",
        )
        print("".join(f"{cell:>15}" for cell in cells))
    if len(found) == 2:
        last = {
            k: {r["epoch"]: r for r in v["log"] if r["stage"] == v["log"][-1]["stage"]}
            for k, v in found.items()
        }
        common = max(set(last["msign"]) & set(last["glow"]))
        print(
            f"at equal epochs ({common}), validation bits/dim: "
            + ", ".join(f"{k} {records[common]['valid_bits']:.4f}" for k, records in last.items())
        )
        gap = found["glow"]["bits_per_dim"] - found["msign"]["bits_per_dim"]
        ratio = found["msign"]["parameters"] / found["glow"]["parameters"]
        print(f"Glow minus MsIGN: {gap:+.4f} bits/dim; MsIGN has {ratio:.2f} of its parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    m = commands.add_parser("memory")
    m.add_argument("--side", type=int, default=64)
    m.add_argument("--batch", type=int, default=16)
    m.add_argument("--scales", type=int, default=3)
    m.add_argument("--hidden", type=int, default=64)
    m.add_argument("--blocks", type=int, nargs="+", default=[8, 32])
    m.add_argument("--kinds", nargs="+", choices=RECOMPUTE, default=RECOMPUTE)
    m.add_argument("--part", type=int, help="images at a time; the batch by default")
    m.add_argument("--steps", type=int, default=2)
    m.add_argument("--model", default="msign")
    m.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    m.add_argument("--recompute", default="blocks", help=argparse.SUPPRESS)
    g = commands.add_parser("gradient")
    g.add_argument("run")
    g.add_argument("--data-dir")
    g.add_argument("--batch", type=int, default=16)
    p = commands.add_parser("preset")
    p.add_argument("name")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--out", default="runs/bench-preset")
    c = commands.add_parser("compare")
    c.add_argument("data")
    c.add_argument("--data-dir")
    c.add_argument("--minutes", type=float, default=60, help="of each model")
    c.add_argument("--epochs", type=int, help="of both models, instead of minutes")
    c.add_argument("--scales", type=int)
    c.add_argument("--blocks", type=int, default=8)
    c.add_argument("--hidden", type=int, default=64)
    c.add_argument("--stage-epochs", type=int)
    c.add_argument("--output")
    c.add_argument("--learning-rate", type=float)
    c.add_argument("--decay", type=float)
    c.add_argument("--coordinates", help="of MsIGN's flows: bands (default) or raw")
    c.add_argument("--per-band", action="store_true", help="mu_l per band and channel")
    c.add_argument("--recompute", choices=RECOMPUTE, help="instead of keeping it in memory")
    c.add_argument("--models", nargs="+", default=["msign", "glow"])
    c.add_argument("--seed", type=int, default=0)
    c.add_argument("--out", default="runs/bench-images")
    options = parser.parse_args()
    if options.command == "memory":
        return memory_worker(options) if options.worker else memory(options)
    return {"gradient": gradient, "preset": preset, "compare": compare}[options.command](options)


if __name__ == "__main__":
    main()
