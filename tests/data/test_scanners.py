"""Digits at sites with different scanners: every image once, changed as its scanner does; groups for the truth."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from coterie.data import load
from coterie.data.scanners import DigitScanners
from coterie.errors import CoterieError


def undone(image, make):
    """Undo what a scanner did, independently of the product's functions."""
    turned = {0: image, 1: image.T[:, ::-1], 2: -image, 3: np.flipud(np.fliplr(image)), 4: np.fliplr(image)}
    return turned[make]


@pytest.mark.parametrize("scanners", [3, 5])
def test_every_image_is_at_one_site_and_comes_back_when_its_scanner_is_undone(scanners):
    samples = DigitScanners(sites=10, scanners=scanners, seed=3).load()
    site = np.array([int(name[-2:]) - 1 for name in samples.owner])
    plain = [undone(x[0], s % scanners) for x, s in zip(samples.x, site, strict=True)]
    ours = sorted(
        (np.round(8 * (image + 1)).astype(int).ravel().tolist(), y)
        for image, y in zip(plain, samples.y.tolist(), strict=True)
    )
    digits = load_digits()
    assert ours == sorted(zip(digits.data.astype(int).tolist(), digits.target.tolist(), strict=True))


def test_sites_groups_and_sizes():
    federation = load("digit-scanners", validation=0.1, test=0.4)
    assert federation.names[0] == "site-01"
    assert len(federation) == 24
    assert federation.groups.tolist() == [0, 1, 2, 3] * 6
    assert federation.class_names == tuple("0123456789")
    assert federation.train.x.shape[2:] == (1, 8, 8)
    total = sum(int(part.count.sum()) for part in (federation.train, federation.validation, federation.test))
    assert total == 1797
    assert 22 <= federation.train.count.min() <= federation.train.count.max() <= 50
    equal = DigitScanners(unequal=0.0).load()
    assert set(np.unique(equal.owner, return_counts=True)[1]) == {74, 75}


def test_seeds_of_the_partition_redraw_the_split_and_leave_the_images_at_their_sites():
    spec = DigitScanners()
    one, two = (load(spec, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.test.x[0], two.test.x[0])
    everything = [
        sorted(map(bytes, np.concatenate([np.asarray(p.x[0, : p.count[0]]) for p in (f.train, f.validation, f.test)])))
        for f in (one, two)
    ]
    assert everything[0] == everything[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sites": 3}, "scanners must be at most 3, the number of sites, not 4"),
        ({"sites": 800}, "sites must leave every site at least two of the 1,797 images"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(CoterieError, match=words):
        DigitScanners(**settings).load()
