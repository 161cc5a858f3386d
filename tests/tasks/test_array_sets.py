"""Array data sets: the .npz form and the published files give the same arrays; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from farfield.tasks.data_folder.store import MissingData
from farfield.tasks.data_sets.array_sets import SETS, Arrays, DamagedData, available, read
from tests.tasks.real import needs_data
from tests.tasks.small_sets import arrays, idx, records, save, save_idx


def same(found: Arrays, expected: dict[str, np.ndarray]) -> None:
    for key, array in expected.items():
        np.testing.assert_array_equal(getattr(found, key), array, err_msg=key)
        assert getattr(found, key).dtype == np.uint8


@pytest.mark.parametrize("name", SETS)
def test_an_npz_is_read_as_it_is(data: Path, name: str) -> None:
    known = SETS[name]
    assert not available(name)
    content = arrays(30, 20, known.image, known.classes)
    save(data / known.places[0], content)
    assert available(name)
    same(read("t", name), content)
    assert read("t", name).counts == {"train": 30, "test": 20}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["MNIST", "MNIST/raw"])
def test_the_published_files_of_mnist(data: Path, folder: str, zipped: bool) -> None:
    content = arrays(12, 6)
    save_idx(data / folder, content, "train", "t10k", zipped)
    same(read("t", "mnist"), content)


def test_the_images_of_emnist_are_turned_upright(data: Path) -> None:
    content = arrays(8, 4)
    lying = {**content, "x_train": content["x_train"].swapaxes(1, 2), "x_test": content["x_test"].swapaxes(1, 2)}
    save_idx(data / "EMNIST", lying, "emnist-mnist-train", "emnist-mnist-test")
    same(read("t", "emnist"), content)


def test_the_binary_version_of_cifar10(data: Path) -> None:
    content = arrays(10, 3, (32, 32, 3))
    folder = data / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        (folder / f"data_batch_{number + 1}.bin").write_bytes(
            records(content["x_train"][part], content["y_train"][part])
        )
    (folder / "test_batch.bin").write_bytes(records(content["x_test"], content["y_test"]))
    same(read("t", "cifar10"), content)


def test_of_the_two_labels_of_cifar100_the_fine_one_counts(data: Path) -> None:
    content = arrays(4, 3, (32, 32, 3), 100)
    content["y_train"] = np.array([99, 3, 50, 0], np.uint8)
    folder = data / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(records(content["x_train"], np.full(4, 7), content["y_train"]))
    (folder / "test.bin").write_bytes(records(content["x_test"], np.full(3, 7), content["y_test"]))
    same(read("t", "cifar100"), content)


@pytest.mark.parametrize(
    ("name", "folder", "prefix"), [("svhn", "SVHN", ""), ("synth_digits", "SynthDigits", "synth_")]
)
def test_mat_files_have_the_images_last_and_ten_for_zero(
    data: Path,
    name: str,
    folder: str,
    prefix: str,
) -> None:
    content = arrays(12, 11, (32, 32, 3))
    (data / folder).mkdir()
    for split in ("train", "test"):
        y = content[f"y_{split}"].copy()
        y[y == 0] = 10
        mat = {"X": np.moveaxis(content[f"x_{split}"], 0, -1), "y": y[:, None]}
        savemat(data / folder / f"{prefix}{split}_32x32.mat", mat)
    same(read("t", name), content)


def test_pickles_are_refused_with_the_way_out(data: Path) -> None:
    (data / "cifar-10-batches-py").mkdir()
    with pytest.raises(DamagedData, match=r"pickles.*can run any code.*binary version.*cifar-10-batches-bin"):
        read("cifar10", "cifar10")
    save(data / "cifar10.npz", arrays(5, 5, (32, 32, 3)))
    assert len(read("cifar10", "cifar10").y_test) == 5


def test_a_set_that_is_not_here_says_what_to_do(data: Path) -> None:
    with pytest.raises(MissingData, match=r"task 'rotated-mnist' is not here: there is no mnist\.npz or MNIST in"):
        read("rotated-mnist", "mnist")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, r"has no array 'x_test'; it has x_train, y_train, y_test"),
        ({"x_train": np.zeros((30, 28, 27), np.uint8)}, r"x_train is uint8 of shape \(30, 28, 27\); mnist has uint8"),
        ({"x_train": np.zeros((30, 28, 28), np.float32)}, r"x_train is float32 of shape \(30, 28, 28\)"),
        ({"y_train": np.zeros(29, np.uint8)}, r"y_train is uint8 of shape \(29,\).*each of the 30 images"),
        ({"y_test": np.full(20, 0.5)}, r"y_test is float64"),
        ({"y_test": np.array([0] * 13 + [11] + [0] * 6)}, r"y_test has the label 11 in row 14; mnist has 0 to 9"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "x_test has no images"),
    ],
)
def test_wrong_arrays_are_named(data: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    content = {**arrays(30, 20), **change}
    save(data / "mnist.npz", {key: array for key, array in content.items() if array is not None})
    with pytest.raises(DamagedData, match=message) as caught:
        read("t", "mnist")
    assert str(data / "mnist.npz") in str(caught.value)


def test_labels_in_a_column_and_a_single_channel_are_taken(data: Path) -> None:
    content = arrays(30, 20)
    folded = {k: a[..., None] for k, a in content.items()}
    save(data / "mnist.npz", {**folded, "y_train": folded["y_train"].astype(np.int64)})
    same(read("t", "mnist"), content)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_npz_is_refused(data: Path, keep: float) -> None:
    path = save(data / "mnist.npz", arrays(30, 20))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if keep < 1 else int(keep)])
    with pytest.raises(DamagedData, match=r"mnist\.npz' is cut short or no \.npz file"):
        read("t", "mnist")


def test_objects_in_an_npz_are_not_unpickled(data: Path) -> None:
    content = {**arrays(3, 3), "y_train": np.array([{}, {}, {}], dtype=object)}
    np.savez(data / "mnist.npz", **content)
    with pytest.raises(DamagedData, match="an array of Python objects, which is not read"):
        read("t", "mnist")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, world", "is no idx file of bytes"),
        (idx(np.zeros((3, 28, 28), np.uint8))[:-1], "is cut short: 2367 bytes, where its header promises 2368"),
        (b"\0\0\x08\x03\0\0", "is cut short"),
    ],
)
def test_a_damaged_idx_file_is_named(data: Path, content: bytes, message: str) -> None:
    folder = save_idx(data / "MNIST", arrays(3, 3), "train", "t10k", zipped=False)
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DamagedData, match=message) as caught:
        read("t", "mnist")
    assert "train-images-idx3-ubyte" in str(caught.value)


def test_a_half_gzip_and_a_missing_file_are_named(data: Path) -> None:
    folder = save_idx(data / "MNIST", arrays(30, 3), "train", "t10k")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DamagedData, match=r"train-images-idx3-ubyte\.gz' is cut short"):
        read("t", "mnist")
    path.unlink()
    with pytest.raises(DamagedData, match=r"has no train-images-idx3-ubyte\.gz or train-images-idx3-ubyte"):
        read("t", "mnist")


def test_half_a_record_of_cifar_is_refused(data: Path) -> None:
    folder = data / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(bytes(3074 + 100))
    with pytest.raises(DamagedData, match=r"3174 bytes are no whole number of 3074-byte records"):
        read("t", "cifar100")


@needs_data("mnist.npz")
@needs_data("usps.npz")
def test_the_real_digits_have_the_published_counts() -> None:
    mnist, usps = read("t", "mnist"), read("t", "usps")
    assert (mnist.counts, usps.counts) == ({"train": 60_000, "test": 10_000}, {"train": 7_291, "test": 2_007})
    assert np.bincount(mnist.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.x_train.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
