from __future__ import annotations

import numpy as np
import pytest

from cellcohort.evaluation.neighbours import knn_recovery

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(300, 5))


def test_the_same_description_in_other_units_recovers_every_neighbour() -> None:
    assert knn_recovery(POINTS * [1, 10, 100, 0.1, 2] + 7, POINTS, k=10) == (1.0, pytest.approx(10 / 299))


def test_unrelated_descriptions_recover_as_many_as_chance() -> None:
    share, chance = knn_recovery(RNG.normal(size=(300, 5)), POINTS, k=10)
    assert share == pytest.approx(chance, abs=0.02)


def test_more_noise_recovers_less() -> None:
    shares = [knn_recovery(POINTS + s * RNG.normal(size=POINTS.shape), POINTS)[0] for s in (0.1, 0.5, 2.0)]
    assert 1 > shares[0] > shares[1] > shares[2]


def test_cells_of_a_group_are_no_neighbours_of_each_other() -> None:
    groups = np.repeat(np.arange(60), 5)
    alike = 100 * RNG.normal(size=(60, 5))[groups]  # so that only the group shows
    of_group = alike + RNG.normal(size=(300, 5))
    share, chance = knn_recovery(of_group, alike + RNG.normal(size=(300, 5)), k=4)
    assert share == 1.0 and chance == pytest.approx(4 / 299)
    share, chance = knn_recovery(of_group[RNG.permutation(60).repeat(5) * 5], alike, k=4, groups=groups)
    assert share < 0.1 and chance == pytest.approx(4 / 295)


@pytest.mark.parametrize(
    ("features", "options", "said"),
    [
        (POINTS[:-1], {}, "299 rows of features"),
        (np.where(POINTS > 2, np.nan, POINTS), {}, "not finite"),
        (POINTS, {"k": 0}, "k=0 must be"),
        (POINTS, {"k": 299}, "below 299"),
        (POINTS, {"k": 150, "groups": np.arange(300) % 2}, "below 150"),
    ],
)
def test_what_cannot_be_compared_is_refused(features: np.ndarray, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        knn_recovery(POINTS, features, **options)  # type: ignore[arg-type]
