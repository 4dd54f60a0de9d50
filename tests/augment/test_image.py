"""Views of image patches are functions of (inputs, key), and do to them what they say."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from cellcohort.augment.image import ImageViews

OFF = ImageViews(flip=False, rotate="none", shift=0, zoom=0, brightness=0, contrast=0, noise=0, blur=0)
EACH: list[dict[str, Any]] = [
    {"flip": True},
    {"rotate": "any"},
    {"rotate": "right"},
    {"shift": 2.0},
    {"zoom": 0.1},
    {"brightness": 0.2},
    {"contrast": 0.2},
    {"noise": 0.1},
    {"blur": 0.8},
    {"channel_dropout": 0.4},
]
SHAPES = [(6, 2, 1, 12, 12), (4, 1, 3, 8, 14), (3, 5, 2, 9, 5), (2, 1, 1, 1, 1)]


def patches(*shape: int) -> torch.Tensor:
    return 3 + 2 * torch.randn(*(shape or SHAPES[0]), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("views", [ImageViews(), ImageViews(rotate="right")])
def test_a_view_is_a_function_of_inputs_and_key_alone(shape: tuple[int, ...], views: ImageViews) -> None:
    inputs = patches(*shape)
    before, state = inputs.clone(), torch.get_rng_state()
    one = views(inputs, (0, 1, 2, 3, 1))
    torch.manual_seed(5)
    again = pickle.loads(pickle.dumps(views))(inputs, (0, 1, 2, 3, 1))
    torch.set_rng_state(state)
    assert torch.equal(one, again) and one.shape == inputs.shape and one.isfinite().all()
    assert torch.equal(inputs, before)
    assert not one.requires_grad
    views(inputs, (9,))
    assert torch.equal(torch.get_rng_state(), state), "no draw is taken from the global generator"


@pytest.mark.parametrize("on", EACH)
def test_each_option_changes_patches_by_draws_of_their_own(on: dict[str, Any]) -> None:
    views, same = replace(OFF, **on), patches(1, 2, 2, 12, 12).expand(8, -1, -1, -1, -1)
    assert views.changes
    made = views(same, (0, 0))
    assert not torch.equal(made, views(same, (0, 1)))
    kinds = {tuple(view.flatten().tolist()) for view in made.round(decimals=3)}
    assert len(kinds) >= {"flip": 2, "rotate": 3, "blur": 6, "channel_dropout": 2}.get(next(iter(on)), 8)


def test_without_any_option_nothing_changes() -> None:
    assert not OFF.changes and torch.equal(OFF(patches(), (1,)), patches())


def test_flips_and_right_angles_show_every_pose_and_keep_every_pixel() -> None:
    square = patches(1, 1, 1, 7, 7)
    made = replace(OFF, flip=True, rotate="right")(square.expand(200, -1, -1, -1, -1), (0,))[:, 0, 0]
    poses = [torch.rot90(p, k) for p in (square[0, 0, 0], square[0, 0, 0].flip(1)) for k in range(4)]
    which = torch.stack([(made - pose).abs().amax(dim=(1, 2)) < 1e-3 for pose in poses], dim=1)
    assert (which.sum(dim=1) == 1).all() and (which.sum(dim=0) > 10).all()


@pytest.mark.parametrize("on", [{"flip": True}, {"rotate": "any"}, {"shift": 3.0}, {"zoom": 0.3}, {"blur": 1.0}])
def test_channels_and_slices_of_a_patch_move_together(on: dict[str, Any]) -> None:
    made = replace(OFF, **on)(patches(5, 1, 1, 10, 13).expand(-1, 3, 2, -1, -1), (4,))
    torch.testing.assert_close(made, made[:, :1, :1].expand_as(made))


def test_rotation_keeps_the_centre_and_a_disc_around_it() -> None:
    y, x = torch.meshgrid(*[torch.arange(31.0) - 15] * 2, indexing="ij")
    disc = torch.exp(-(y**2 + x**2) / 40)[None, None, None].expand(6, -1, -1, -1, -1)
    made = replace(OFF, flip=True, rotate="any")(disc, (0,))
    inside = y**2 + x**2 <= 15**2
    torch.testing.assert_close(made[..., inside], disc[..., inside], atol=0.02, rtol=0)


def test_a_shift_moves_up_to_as_far_as_said_both_ways_and_a_zoom_scales_both_ways() -> None:
    y, x = torch.meshgrid(*[torch.arange(41.0) - 20] * 2, indexing="ij")
    spot = torch.exp(-(y**2 + x**2) / 18)[None, None, None].expand(100, -1, -1, -1, -1)
    moved = replace(OFF, shift=4.0)(spot, (0,))[:, 0, 0]
    for axis in (y, x):
        place = (moved * axis).sum(dim=(1, 2)) / moved.sum(dim=(1, 2))
        assert place.abs().max() < 4.05 and place.max() > 3 and place.min() < -3
    area = replace(OFF, zoom=0.25)(spot, (0,)).sum(dim=(1, 2, 3, 4)) / spot[0].sum()
    assert area.max() < 1.25**2 + 0.02 and area.min() > 1.25**-2 - 0.02
    assert area.max() > 1.4 and area.min() < 0.72


def test_brightness_adds_to_a_channel_and_contrast_keeps_its_mean() -> None:
    inputs = patches(50, 2, 2, 8, 8)
    spread, mean = torch.std_mean(inputs, dim=(2, 3, 4), correction=0)
    added = (replace(OFF, brightness=0.2)(inputs, (0,)) - inputs).flatten(2)
    assert (added.amax(2) - added.amin(2)).max() < 1e-5
    assert 0.15 < (added.mean(2) / spread).std() < 0.25
    flat = replace(OFF, contrast=0.2)(inputs, (0,))
    torch.testing.assert_close(flat.mean(dim=(2, 3, 4)), mean)
    assert 0.15 < (flat.std(dim=(2, 3, 4), correction=0) / spread).log().std() < 0.25
    noisy = replace(OFF, noise=0.1)(inputs, (0,)) - inputs
    assert 0.09 < (noisy.flatten(2).std(dim=2) / spread).mean() < 0.11


def test_a_blur_smooths_and_keeps_the_mean_of_what_lies_inside() -> None:
    y, x = torch.meshgrid(*[torch.arange(31.0) - 15] * 2, indexing="ij")
    inputs = torch.exp(-(y**2 + x**2) / 8)[None, None, None].expand(30, -1, -1, -1, -1)
    made = replace(OFF, blur=2.0)(inputs, (0,))
    torch.testing.assert_close(made.sum(dim=(1, 2, 3, 4)), inputs.sum(dim=(1, 2, 3, 4)), rtol=1e-3, atol=0)
    peak = made.amax(dim=(1, 2, 3, 4))
    assert peak.max() <= 1.0 and peak.max() > 0.95 and peak.min() < 0.6


@pytest.mark.parametrize("scale, offset", [(0.01, 0.0), (1000.0, -500.0)])
def test_inputs_of_any_unit_are_treated_alike(scale: float, offset: float) -> None:
    made, other = ImageViews()(patches(), (3,)), ImageViews()(scale * patches() + offset, (3,))
    torch.testing.assert_close(other, scale * made + offset, rtol=1e-3, atol=1e-3 * scale)


def test_flat_patches_stay_finite() -> None:
    torch.testing.assert_close(ImageViews()(torch.full((2, 2, 1, 9, 9), 4.0), (0,)), torch.full((2, 2, 1, 9, 9), 4.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"place": "left"},
        {"crop": [5]},
        {"crop": [5, 0]},
        {"channel_dropout": 1.5},
        {"rotate": "left"},
        {"shift": -1.0},
        {"zoom": float("nan")},
        {"noise": -0.1},
        {"blur": 3.5},
        {"contrast": -1.0},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"augment.{next(iter(wrong))}="):
        ImageViews(**wrong)


def test_what_is_no_batch_of_patches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 2, 8, 8\).*\(batch, channels, slices, height, width\)"):
        ImageViews()(torch.zeros(4, 2, 8, 8), (0,))


def test_a_channel_is_dropped_as_often_as_asked_and_one_always_stays() -> None:
    inputs = 1 + patches(4000, 3, 1, 2, 2).abs()
    made = replace(OFF, channel_dropout=0.3)(inputs, (0,))
    gone = (made == 0).all(dim=(2, 3, 4))
    assert torch.equal(gone, (made == 0).any(dim=(2, 3, 4))), "a channel as a whole"
    torch.testing.assert_close(made[~gone], inputs[~gone])
    counts = torch.bincount(gone.sum(dim=1), minlength=4) / 4000
    expected = torch.tensor([0.7**3, 3 * 0.3 * 0.7**2, 3 * 0.3**2 * 0.7 + 0.3**3, 0.0])
    torch.testing.assert_close(counts, expected, atol=0.03, rtol=0)
    assert gone.float().mean(dim=0).std() < 0.03
    every = replace(OFF, channel_dropout=1.0)(inputs, (1,))
    assert ((every != 0).any(dim=(2, 3, 4)).sum(dim=1) == 1).all()
    with pytest.raises(ValueError, match="would leave nothing of inputs of one channel"):
        replace(OFF, channel_dropout=0.3)(inputs[:, :1], (0,))


def test_a_crop_is_a_part_of_the_patch_at_every_place_alike() -> None:
    y, x = torch.meshgrid(torch.arange(9.0), torch.arange(8.0), indexing="ij")
    inputs = (10 * y + x)[None, None, None].expand(3000, 2, 3, -1, -1)
    made = replace(OFF, crop=(7, 4))(inputs, (0,))
    assert made.shape == (3000, 2, 3, 7, 4)
    torch.testing.assert_close(made, made[:, :1, :1].expand_as(made))
    first = made[:, 0, 0, 0, 0]
    torch.testing.assert_close(made[:, 0, 0], first[:, None, None] + (10 * y + x)[None, :7, :4])
    places, counts = first.unique(return_counts=True)
    assert places.tolist() == [10 * i + j for i in range(3) for j in range(5)]
    assert (counts / 3000 - 1 / 15).abs().max() < 0.02
    middle = replace(OFF, crop=(7, 4)).centred(inputs, (0,))
    torch.testing.assert_close(middle, inputs[..., 1:8, 2:6])
    assert not replace(OFF, crop=(7, 4)).centred.changes and replace(OFF, crop=(7, 4)).changes
    with pytest.raises(ValueError, match=r"crop=\[10, 4\] is larger than the patches, which have \[9, 8\]"):
        replace(OFF, crop=(10, 4))(inputs, (0,))


def test_a_crop_and_a_dropout_leave_the_other_draws_as_they_are() -> None:
    inputs = patches(4, 2, 1, 12, 12)
    whole = replace(OFF, flip=True, rotate="any", contrast=0.2)
    torch.testing.assert_close(replace(whole, crop=(6, 6)).centred(inputs, (0,)), whole(inputs, (0,))[..., 3:9, 3:9])
    fewer = replace(whole, channel_dropout=0.5)(inputs, (0,))
    torch.testing.assert_close(fewer[fewer != 0], whole(inputs, (0,))[fewer != 0])


def test_a_larger_patch_shows_what_lies_around_where_a_small_one_is_mirrored() -> None:
    """Lines of brightness by their distance from the middle: rotation by any angle does not change them."""
    y, x = torch.meshgrid(*[torch.arange(61.0) - 30] * 2, indexing="ij")
    rings = torch.cos((y**2 + x**2).sqrt() / 4)[None, None, None].expand(20, -1, -1, -1, -1)
    turned = replace(OFF, rotate="any", crop=(31, 31)).centred(rings, (0,))
    torch.testing.assert_close(turned, rings[..., 15:46, 15:46], atol=0.05, rtol=0)
    mirrored = replace(OFF, rotate="any")(rings[..., 15:46, 15:46].contiguous(), (0,))
    assert (mirrored - rings[..., 15:46, 15:46]).abs().max() > 0.5
