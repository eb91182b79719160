"""What is said of a model of images follows from its bits."""

from msign.report.image_page import image_words

EVALUATION = {
    "bits_per_dim": 3.25,
    "standard_error": 0.01,
    "test_images": 297,
    "round_trip_largest_error": 1e-10,
}


def rounds(*pairs):
    return [
        {"stage": 1, "epoch": i, "train_bits": t, "valid_bits": v}
        for i, (t, v) in enumerate(pairs, start=1)
    ]


def test_a_model_that_still_learned_is_given_more_epochs():
    learning = image_words(EVALUATION, rounds((3.5, 3.5), (3.2, 3.2)))
    assert "--epochs 4" in learning.steps[0]
    assert "--epochs 2" in image_words(EVALUATION, rounds((3.5, 3.5))).steps[0]
    done = image_words(EVALUATION, rounds((3.2, 3.2), (3.2, 3.2)))
    assert not any("--epochs" in step for step in done.steps)


def test_overfitting_is_said():
    found = image_words(EVALUATION, rounds((3.1, 3.3), (2.9, 3.3)))
    assert "14 percent more bits" in found.doubt[-1]
    assert any("smaller network" in step for step in found.steps)


def test_a_model_without_test_images_says_how_to_evaluate_it():
    found = image_words(None, rounds((3.2, 3.2)))
    assert found.grade == "NOT EVALUATED" and "msign images evaluate" in found.steps[0]
    assert not found.trust
