"""Augmentations: the same as doing it image by image, drawn by the client, and never where something is measured."""

from __future__ import annotations

import colorsys
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.algorithms import build
from farfield.federation import Client, Rows
from farfield.models import ModelSpec, build_model
from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.augment import (
    AREA,
    GREY,
    GREY_SHARE,
    JITTER,
    Draws,
    crop_and_flip,
    draw,
    recolour,
    standard,
    turn_hue,
)
from farfield.tasks.task import Domain, Task


def images(count: int = 12, size: int = 20, channels: int = 3) -> Tensor:
    return torch.rand((count, channels, size, size + 4), generator=torch.Generator().manual_seed(1))


def drawn(x: Tensor, seed: int = 0) -> Draws:
    return draw(len(x), x.shape[2], x.shape[3], torch.Generator().manual_seed(seed))


def of_one(draws: Draws, i: int) -> dict[str, float]:
    return {f.name: getattr(draws, f.name)[i].item() for f in fields(draws)}


def test_cropping_and_flipping_a_batch_is_doing_it_image_by_image() -> None:
    x = images()
    draws = drawn(x)
    got = crop_and_flip(x, draws)
    assert {True, False} == set(draws.flip.tolist())
    for i in range(len(x)):
        d = of_one(draws, i)
        top, left, height, width = (int(d[name]) for name in ("top", "left", "height", "width"))
        box = x[i : i + 1, :, top : top + height, left : left + width]
        assert box.shape[2:] == (height, width)
        alone = F.interpolate(box, x.shape[2:], mode="bilinear", align_corners=False)
        torch.testing.assert_close(got[i : i + 1], alone.flip(3) if d["flip"] else alone, rtol=0, atol=2e-5)


def recolour_one(image: np.ndarray, d: dict[str, float]) -> np.ndarray:
    """Pixel by pixel, with Python's own colour conversion."""

    def grey(x: np.ndarray) -> np.ndarray:
        return np.tensordot(np.array(GREY), x, axes=1)

    x = np.clip(image * d["brightness"], 0, 1)
    mean = grey(x).mean()
    x = np.clip(mean + d["contrast"] * (x - mean), 0, 1)
    x = np.clip(grey(x) + d["saturation"] * (x - grey(x)), 0, 1)
    out = np.empty_like(x)
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*x[:, row, column])
            out[:, row, column] = colorsys.hsv_to_rgb((hue + d["hue"]) % 1.0, saturation, value)
    return np.broadcast_to(grey(out), out.shape) if d["grey"] else out


def test_recolouring_a_batch_is_doing_it_pixel_by_pixel() -> None:
    x = images(count=24, size=6)
    draws = drawn(x, seed=3)
    assert {True, False} == set(draws.grey.tolist())
    got = recolour(x, draws)
    for i in range(len(x)):
        expected = recolour_one(x[i].double().numpy(), of_one(draws, i))
        np.testing.assert_allclose(got[i].numpy(), expected, atol=2e-5)


def test_grey_black_and_white_have_no_hue_to_turn() -> None:
    x = torch.tensor([0.0, 0.4, 1.0]).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    assert torch.equal(turn_hue(x, torch.tensor([0.3])), x)
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(turn_hue(red, torch.tensor([1 / 3])).flatten(), torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(turn_hue(red, torch.tensor([-1 / 3])).flatten(), torch.tensor([0.0, 0.0, 1.0]))


def test_draws_stay_in_their_ranges_and_boxes_in_the_image() -> None:
    d = draw(20_000, 64, 64, torch.Generator().manual_seed(0))
    area = d.height * d.width / 64**2
    assert float(area.max()) <= AREA[1]
    assert float(area.quantile(0.5)) > 0.75
    assert float(area.min()) > 0.6  # boxes cut to the image, and whole pixels, may fall a little under the range
    for start, length in ((d.top, d.height), (d.left, d.width)):
        assert float(start.min()) >= 0
        assert float((start + length).max()) <= 64
    for factor in (d.brightness, d.contrast, d.saturation):
        assert 1 - JITTER <= float(factor.min()) < 0.72
        assert 1.28 < float(factor.max()) <= 1 + JITTER
    assert float(d.hue.abs().max()) <= JITTER
    assert float(d.flip.float().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(d.grey.float().mean()) == pytest.approx(GREY_SHARE, abs=0.01)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_result_is_an_image_of_the_same_shape_and_every_image_gets_its_own(channels: int) -> None:
    x = images(count=1, channels=channels).expand(8, -1, -1, -1).contiguous()
    kept = x.clone()
    got = standard(x, torch.Generator().manual_seed(0))
    assert got.shape == x.shape
    assert 0 <= float(got.min()) <= float(got.max()) <= 1
    assert torch.equal(x, kept)
    assert all(not torch.equal(got[i], got[j]) for i in range(8) for j in range(i))


def site(augment: str, **changed: object) -> Client:
    pixels = (images(count=40) * 255).to(torch.uint8)
    domain = Domain("d", pixels, torch.arange(40) % 2)
    rows = Rows({"d": domain}, [("d", torch.arange(30))])
    held = Rows({"d": domain}, [("d", torch.arange(30, 40))])
    key = {"seed": 0, "round": 1, "name": "site", "phase": "train"} | changed
    return Client(id=0, domain="d", training=rows, validation=held, augment=augment, **key)  # type: ignore[arg-type]


def test_training_batches_are_augmented_in_the_order_of_plain_ones() -> None:
    plain, augmented = list(site("none").batches(8)), list(site("standard").batches(8))
    assert [b.y.tolist() for b in plain] == [b.y.tolist() for b in augmented]
    assert all(not torch.equal(a.x, b.x) for a, b in zip(plain, augmented, strict=True))


def test_the_clients_own_key_decides_the_draws() -> None:
    def first(**changed: object) -> Tensor:
        return next(site("standard", **changed).batches(0)).x.sort(dim=0).values

    assert torch.equal(first(), first())
    for changed in ({"round": 2}, {"seed": 1}, {"name": "other"}, {"phase": "else"}):
        assert not torch.equal(first(), first(**changed))


def test_validation_and_full_passes_see_the_rows_as_they_are() -> None:
    plain, augmented = site("none"), site("standard")
    for rows in ("training", "validation"):
        a, b = next(plain.sweep(getattr(plain, rows))), next(augmented.sweep(getattr(augmented, rows)))
        assert torch.equal(a.x, b.x)
    spec = ModelSpec(featurizer="convnet", input_shape=(3, 20, 24), outputs=2, hidden=(4,))
    method = build("fedavg", {})
    measured = [method.evaluate(client, build_model(spec, 0)) for client in (plain, augmented)]
    assert measured[0].keys() == measured[1].keys()
    for name, value in measured[0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(measured[1][name])), name
    trained = [method.train(client, build_model(spec, 0))["update"] for client in (plain, augmented)]
    assert not torch.equal(torch.as_tensor(trained[0]), torch.as_tensor(trained[1]))


def task(augment: str | None = None, shape: tuple[int, ...] = (3, 8, 8)) -> Task:
    domains = [Domain(name, torch.rand((20, *shape)), torch.arange(20) % 2) for name in "abc"]
    defaults = {} if augment is None else {"augment": augment}
    spec = ModelSpec(featurizer="mlp", input_shape=shape, outputs=2)
    return Task("toy", "classification", tuple(domains), ("x", "y"), spec, defaults)


def test_the_task_says_whether_to_augment_and_the_user_has_the_last_word() -> None:
    assert make_plan(task()).augment == "none"
    assert make_plan(task("standard")).augment == "standard"
    assert make_plan(task("standard"), settings={"augment": "none"}).augment == "none"
    assert make_plan(task(), settings={"augment": "standard", "lr": 0.5}).augment == "standard"


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(PlanError, match="augment = 'strong': choose one of none, standard"):
        make_plan(task(), settings={"augment": "strong"})
    with pytest.raises(PlanError, match=r"images of 1 or 3 channels; those of task 'toy' have shape \(5,\)"):
        make_plan(task(shape=(5,)), settings={"augment": "standard"})
