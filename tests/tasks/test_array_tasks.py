"""The tasks made of array sets, each against the paper's rule computed image by image."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from farfield.models import build_model
from farfield.tasks import describe, load
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.data_folder.store import MissingData
from farfield.tasks.data_sets.colored_mnist import FEDILC, IRM, colour, deal
from farfield.tasks.data_sets.rotated_cifar10 import ANGLES, CLIENTS
from tests.tasks.real import needs_data
from tests.tasks.small_sets import arrays, save
from tests.tasks.test_pictures import naive

TASKS = (
    "cifar10",
    "cifar100",
    "colored-mnist",
    "colored-mnist-irm",
    "digits-five",
    "emnist",
    "mnist",
    "rotated-cifar10",
    "rotated-cifar10-16",
    "rotated-mnist",
)


@pytest.fixture
def everything(data: Path) -> Path:
    save(data / "mnist.npz", arrays(600, 120))
    save(data / "emnist.npz", arrays(300, 60, seed=1))
    save(data / "usps.npz", arrays(90, 30, (16, 16), seed=2))
    save(data / "mnist_m.npz", arrays(80, 20, (32, 32, 3), seed=3))
    save(data / "cifar10.npz", arrays(450, 50, (32, 32, 3), seed=4))
    save(data / "cifar100.npz", arrays(400, 100, (32, 32, 3), 100, seed=5))
    return data


@pytest.mark.parametrize("name", TASKS)
def test_without_its_files_a_task_is_not_available_and_says_so(data: Path, name: str) -> None:
    assert not describe(name).available
    with pytest.raises(MissingData, match=f"'{name}'") as caught:
        load(name)
    assert "get it with 'farfield data fetch " in str(caught.value)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("name", TASKS)
def test_a_task_keeps_bytes_and_fits_its_model(name: str) -> None:
    assert describe(name).available
    task = load(name)
    for domain in task.domains:
        assert domain.x.dtype == torch.uint8
        assert tuple(domain.x.shape[1:]) == task.model.input_shape
        assert (domain.y.dtype, domain.y.ndim) == (torch.int64, 1)
        assert 0 <= int(domain.y.min()) <= int(domain.y.max()) < len(task.classes)
    logits = build_model(task.model, 0)(task.domains[0].x[:4] / 255)
    assert logits.shape == (4, task.model.outputs)
    assert task.model.outputs in (1, len(task.classes))
    assert set(task.held_out) <= set(task.domain_names)


@pytest.mark.slow
@pytest.mark.usefixtures("everything")
def test_rotated_mnist_turns_every_image_once() -> None:
    task = load("rotated-mnist")
    source = arrays(600, 120)
    images = np.concatenate([source["x_train"], source["x_test"]])
    labels = np.concatenate([source["y_train"], source["y_test"]])
    assert [len(domain) for domain in task.domains] == [120] * 6
    by_bytes = {image.tobytes(): number for number, image in enumerate(images)}
    # Domain 0 is untouched, so its images are found as they are; a turned image is compared with the loop's.
    first = [by_bytes[x.numpy().tobytes()] for x in task.domain("0").x[:, 0]]
    assert labels[first].tolist() == task.domain("0").y.tolist()
    assert len(set(first)) == 120
    for angle in (15, 75):
        domain = task.domain(str(angle))
        picture, label = domain.x[5, 0].numpy().astype(int), int(domain.y[5])
        rest = [n for n in range(720) if n not in set(first) and labels[n] == label]
        distances = [np.abs(naive(images[n], angle, "bilinear").astype(int) - picture).max() for n in rest]
        assert sorted(distances)[0] <= 1
        assert sorted(distances)[1] > 50
    total = sum(torch.bincount(domain.y, minlength=10) for domain in task.domains)
    assert torch.as_tensor(total).tolist() == np.bincount(labels).tolist()


def test_the_colour_rule_gives_the_golden_numbers() -> None:
    """Label 1 for a digit below 5; flips by xor; the kept channel is the colour; every second pixel."""
    digits = np.array([3, 7, 3, 7, 0, 9], np.uint8)
    label_flip = np.array([0, 0, 1, 1, 0, 0], np.uint8)
    colour_flip = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    images = np.random.default_rng(0).integers(1, 256, (6, 28, 28), dtype=np.uint8)
    x, y = colour(images, digits, label_flip, colour_flip)
    assert y.tolist() == [1, 0, 0, 1, 1, 0]
    kept = [1, 0, 0, 0, 0, 1]
    for number, channel in enumerate(kept):
        assert np.array_equal(x[number, channel], images[number, ::2, ::2])
        assert not x[number, 1 - channel].any()


def flips(domain_x: torch.Tensor, labels: torch.Tensor) -> int:
    """How many images have a colour that is not their label."""
    channel = (domain_x[:, 1].flatten(1).sum(dim=1) > 0).long()
    return int((channel != labels).sum())


def within(count: int, rows: int, probability: float) -> bool:
    """Four and a half standard deviations of a binomial: a right draw fails once in a hundred thousand."""
    return abs(count - rows * probability) <= 4.5 * math.sqrt(rows * probability * (1 - probability)) + 1e-9


@pytest.mark.parametrize(("name", "shades"), [("colored-mnist", FEDILC), ("colored-mnist-irm", IRM)])
def test_colours_and_labels_are_flipped_as_often_as_said(data: Path, name: str, shades: tuple) -> None:  # type: ignore[type-arg]
    source = arrays(12_000, 10)
    source["x_train"] |= 1
    save(data / "mnist.npz", source)
    task = load(name)
    parts = deal(12_000, len(shades) - 1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(12_000))
    assert parts[-1].tolist() == list(range(10_000, 12_000))
    assert [len(d) for d in task.domains] == [10_000 // (len(shades) - 1)] * (len(shades) - 1) + [2_000]
    for domain, rows, shade in zip(task.domains, parts, shades, strict=True):
        assert within(flips(domain.x, domain.y), len(rows), shade.colour_flips), shade
        wrong = int((domain.y.numpy() != (source["y_train"][rows] < 5)).sum())
        assert within(wrong, len(rows), shade.label_flips), shade
        grey = domain.x.sum(dim=1).numpy()
        assert np.array_equal(grey, source["x_train"][rows][:, ::2, ::2])
    assert task.held_out == (shades[-1].name,)


@pytest.mark.slow
@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(("name", "step"), [("rotated-cifar10", 1), ("rotated-cifar10-16", 2)])
def test_rotated_cifar10_has_nine_angles_and_any_angle(name: str, step: int) -> None:
    task = load(name)
    source = arrays(450, 50, (32, 32, 3), seed=4)
    pixels = source["x_train"][:, ::step, ::step]
    assert [len(domain) for domain in task.domains] == [40] * 9 + [90]
    seen: list[int] = []
    for angle, domain in zip(ANGLES, task.domains, strict=False):
        if angle in (90, -90):  # a quarter turn loses nothing, so every image can be found
            upright = np.rot90(domain.x.numpy(), -1 if angle == 90 else 1, axes=(2, 3)).transpose(0, 2, 3, 1)
            found = [int(np.flatnonzero((pixels == image).all(axis=(1, 2, 3)))[0]) for image in upright]
            assert source["y_train"][found].tolist() == domain.y.tolist()
            assert max(found) < 360
            seen += found
    assert len(seen) == len(set(seen)) == 80
    domain = task.domain("25")
    picture = domain.x[3].numpy().transpose(1, 2, 0)
    assert any(np.array_equal(naive(image, 25, "nearest"), picture) for image in pixels[:360])
    assert task.domain("ood").y.tolist() == source["y_train"][360:].tolist()


@pytest.mark.usefixtures("everything")
def test_the_clients_of_rotated_cifar10_hold_three_angles_each() -> None:
    task = load("rotated-cifar10")
    clients = make_clients(
        task.domains[:9],
        partition=Partition.parse("sub-environments"),
        clients=3,
        validation=0.25,
        seed=0,
        kind=task.kind,
    )
    assert [shard.name for shard in clients] == ["10+25+40", "60+75+90", "minus-10+minus-40+minus-90"]
    assert [len(shard.train) for shard in clients] == [len(angles) for angles in CLIENTS]
    assert clients.train_sizes.tolist() == [90, 90, 90]
    assert clients.validation_sizes.tolist() == [30, 30, 30]
    assert (task.defaults["partition"], task.defaults["clients"]) == ("sub-environments", 3)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(("name", "train", "test"), [("mnist", 600, 120), ("cifar100", 400, 100)])
def test_label_skew_tasks_hold_out_the_test_rows_and_skew_the_rest(name: str, train: int, test: int) -> None:
    task = load(name)
    assert task.domain_names == ("train", "test")
    assert [len(domain) for domain in task.domains] == [train, test]
    assert (task.held_out, task.defaults["clients"]) == (("test",), 100)
    clients = make_clients(
        task.domains[:1],
        partition=Partition.parse(task.defaults["partition"]),
        clients=100,
        seed=0,
        kind=task.kind,
    )
    assert len(clients) == 100
    assert int(clients.train_sizes.sum() + clients.validation_sizes.sum()) == train
    histograms = torch.stack([torch.bincount(task.domains[0].y[s.train[0][1]], minlength=100) for s in clients])
    spread = torch.bincount(task.domains[0].y, minlength=100) * 0.9
    assert torch.allclose(histograms.sum(dim=0).float(), spread.float(), atol=1.0)


@pytest.mark.usefixtures("everything")
def test_a_small_alpha_gives_a_client_few_classes() -> None:
    y = load("mnist").domains[0]
    shares = {}
    for beta in (0.1, 100.0):
        clients = make_clients(
            [y], partition=Partition(kind="dirichlet", beta=beta), clients=10, seed=0, kind="classification"
        )
        largest = []
        for shard in clients:
            counts = torch.bincount(y.y[shard.train[0][1]], minlength=10).double()
            largest.append(float(counts.max() / counts.sum()))
        shares[beta] = sum(largest) / len(largest)
    assert shares[0.1] > 0.4
    assert shares[100.0] < 0.2


@pytest.mark.usefixtures("everything")
def test_digits_five_takes_what_is_here_and_says_what_is_not() -> None:
    task = load("digits-five")
    assert task.domain_names == ("mnist", "mnist_m", "usps")
    assert [len(domain) for domain in task.domains] == [720, 100, 120]
    assert {tuple(domain.x.shape[1:]) for domain in task.domains} == {(3, 32, 32)}
    assert task.notes[0] == "of the five collections svhn, synth_digits are not here, and left out"
    assert task.notes[-1] == "'usps.npz' has 90 training and 30 test images; published are 7,291 and 2,007"
    colour_set = arrays(80, 20, (32, 32, 3), seed=3)
    assert np.array_equal(task.domain("mnist_m").x[:80].numpy(), colour_set["x_train"].transpose(0, 3, 1, 2))


def test_digits_five_says_that_mnist_m_is_mnist_recoloured(data: Path) -> None:
    save(data / "mnist.npz", arrays(90, 30, (28, 28)))
    save(data / "usps.npz", arrays(90, 30, (16, 16)))
    assert not [note for note in load("digits-five").notes if "recoloured" in note]
    load.cache_clear()
    save(data / "mnist_m.npz", arrays(80, 20, (32, 32, 3)))
    assert "mnist_m's digits are mnist's, recoloured" in " ".join(load("digits-five").notes)


def test_digits_five_needs_two_collections(data: Path) -> None:
    save(data / "usps.npz", arrays(90, 30, (16, 16)))
    with pytest.raises(MissingData, match=r"at least two of mnist\.npz, .*only usps\.npz") as caught:
        load("digits-five")
    assert str(caught.value).endswith("get it with 'farfield data fetch mnist' or 'farfield data fetch svhn'")


@needs_data("mnist.npz")
def test_the_real_rotated_mnist_has_70000_digits_in_six_domains() -> None:
    load.cache_clear()
    task = load("rotated-mnist")
    assert [len(domain) for domain in task.domains] == [11_667, 11_667, 11_667, 11_667, 11_666, 11_666]
    total = sum(torch.bincount(domain.y, minlength=10) for domain in task.domains)
    assert torch.as_tensor(total).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    means = [float(domain.x.float().mean() / 255) for domain in task.domains]
    assert max(means) - min(means) < 0.002  # a turn moves the ink and loses almost none
    load.cache_clear()


@needs_data("mnist.npz")
def test_the_real_colored_mnist_has_ten_thousand_images_a_domain() -> None:
    load.cache_clear()
    task = load("colored-mnist")
    assert [len(domain) for domain in task.domains] == [10_000] * 6
    for domain, shade in zip(task.domains, FEDILC, strict=True):
        assert within(flips(domain.x, domain.y), 10_000, shade.colour_flips)
    load.cache_clear()
