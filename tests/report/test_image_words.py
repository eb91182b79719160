"""What is said of a model of images follows from its bits."""

from msign.report.image_page import _numbers, image_words

EVALUATION = {
    "bits_per_dim": 3.25,
    "standard_error": 0.01,
    "test_images": 297,
    "round_trip_largest_error": 1e-10,
}


def rounds(*pairs):
    return [
        {"stage": 1, "epoch": i, "seconds": 1.0, "train_bits": t, "valid_bits": v}
        for i, (t, v) in enumerate(pairs, start=1)
    ]


def test_a_model_that_still_learned_is_given_more_epochs():
    learning = image_words(EVALUATION, rounds((3.5, 3.5), (3.2, 3.2)))
    assert "--epochs 4" in learning.steps[0]
    assert "--epochs 2" in image_words(EVALUATION, rounds((3.5, 3.5))).steps[0]
    done = image_words(EVALUATION, rounds((3.2, 3.2), (3.2, 3.2)))
    assert not any("--epochs" in step for step in done.steps)


def test_overfitting_is_said():
    found = image_words(EVALUATION, rounds((3.1, 3.3), (2.9, 3.299)))
    assert "14 percent more bits" in found.doubt[-1]
    assert any("smaller network" in step for step in found.steps)
    given = image_words(EVALUATION, rounds((3.1, 3.3), (2.9, 3.299)), "runs/a", 64)
    assert any("--hidden 32" in step for step in given.steps)


def test_commands_name_the_run():
    for evaluation in (EVALUATION, None):
        steps = image_words(evaluation, rounds((3.2, 3.2)), "'my run'").steps
        assert any("'my run'" in step for step in steps)
        assert not any("RUN" in step for step in steps)


def test_numbers_are_those_of_the_model_that_was_kept():
    """The best one by held-out bits, which need not be the last."""
    log = rounds((3.5, 3.6), (3.0, 3.2), (2.5, 3.4))
    assert "6.7 percent more bits" in image_words(EVALUATION, log).doubt[-1]
    assert dict(n[:2] for n in _numbers(None, log))["Held-out bits"] == "3.2000"


def test_errors_are_said_without_powers_of_ten():
    for error, said in ((2.86e-6, "0.000003"), (0.25, "0.25"), (1e-10, "a millionth")):
        given = {**EVALUATION, "round_trip_largest_error": error}
        found = image_words(given, rounds((3.2, 3.2)))
        assert f"within {said} of a grey level" in found.trust[1]


def test_a_model_without_test_images_says_how_to_evaluate_it():
    found = image_words(None, rounds((3.2, 3.2)))
    assert found.grade == "NOT EVALUATED" and "msign images evaluate" in found.steps[0]
    assert not found.trust
