"""bfloat16: refused where it is slow, with the figure; computed below the head alone; recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.models import ModelSpec, build_model, why_not_stacked
from farfield.records import RecordsError
from farfield.reproducibility import precision
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.precision import PrecisionError, check_precision, refuse_slow
from tests import toy

HALF = ModelSpec(input_shape=(4,), outputs=3, hidden=(6,), precision="bfloat16")


@pytest.mark.parametrize(
    ("times", "figure"),
    [
        ({"product": (0.001, 0.0434), "convolution": (0.001, 0.026)}, "43"),
        ({"product": (0.001, 0.0005), "convolution": (0.001, 0.0016)}, "1.6"),
        ({"product": (0.001, float("nan"))}, "nan"),
    ],
)
def test_slow_bfloat16_is_refused_with_the_worst_figure(times: dict[str, tuple[float, float]], figure: str) -> None:
    with pytest.raises(PrecisionError) as refused:
        refuse_slow(times, "this processor")
    assert str(refused.value) == f"bfloat16 is {figure} times slower than float32 on this processor; omit --precision"


def test_fast_bfloat16_is_taken() -> None:
    refuse_slow({"product": (0.002, 0.001), "convolution": (0.001, 0.0014)}, "this processor")


def test_the_probe_times_both_operations_in_both_precisions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    precision.measured_times.cache_clear()
    dtypes: list[Any] = []

    def seconds(compute: Any, given: list[torch.Tensor], device: torch.device) -> float:
        compute(*given)
        dtypes.append(given[0].dtype)
        return 1.0 if given[0].dtype == torch.float32 else 7.0

    monkeypatch.setattr(precision, "_seconds", seconds)
    monkeypatch.delenv(precision.UNCHECKED, raising=False)
    for _ in range(2):
        with pytest.raises(PrecisionError, match=r"bfloat16 is 7.0 times slower"):
            check_precision("bfloat16", CPU)
    assert dtypes == [torch.float32, torch.bfloat16] * 2
    precision.measured_times.cache_clear()
    check_precision("float32", CPU)
    with pytest.raises(PrecisionError, match="there is no precision 'float16'; say float32 or bfloat16"):
        check_precision("float16", CPU)


@pytest.mark.parametrize(
    "error",
    [
        TypeError("BFloat16 is not supported on MPS"),
        RuntimeError("\"slow_conv2d\" not implemented for 'BFloat16'\nwith more lines"),
    ],
)
def test_a_device_that_cannot_compute_it_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(compute: Any, given: list[torch.Tensor], device: torch.device) -> float:
        if given[0].dtype == torch.bfloat16:
            raise error
        return 1.0

    precision.measured_times.cache_clear()
    monkeypatch.setattr(precision, "_seconds", seconds)
    monkeypatch.delenv(precision.UNCHECKED, raising=False)
    with pytest.raises(PrecisionError) as refused:
        check_precision("bfloat16", CPU)
    first = str(error).partition("\n")[0]
    assert str(refused.value) == f"bfloat16 cannot be computed on this processor ({first}); omit --precision"


def test_layers_below_the_head_round_to_bfloat16_and_nothing_else_does() -> None:
    model, exact = build_model(HALF, seed=0), build_model(HALF.model_copy(update={"precision": "float32"}), seed=0)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    features = model.features(x)
    weight, bias = (exact.vector[s].view(exact.layout.shapes[n]) for n, s in list(exact.layout.slices.items())[:2])
    by_hand = torch.nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).relu()
    assert features.dtype == torch.float32
    assert torch.equal(features.detach(), by_hand.float())
    assert not torch.equal(features, exact.features(x))
    assert torch.equal(model(x), model.head(features))
    model.backward(model(x).square().mean())
    assert {t.dtype for t in (model.vector, model.gradient, model(x))} == {torch.float32}
    assert bool(model.gradient.abs().sum() > 0)


def test_a_spec_in_float32_is_written_as_before_there_was_a_choice() -> None:
    plain = ModelSpec(input_shape=(4,), outputs=3)
    assert "precision" not in plain.model_dump(mode="json")
    assert ModelSpec.model_validate(plain.model_dump(mode="json")).precision == "float32"
    assert ModelSpec.model_validate(HALF.model_dump(mode="json")).precision == "bfloat16"


def bench(out: Path, **options: Any) -> Any:
    given = {"seeds": 1, "rounds": 2, "references": False, "parallel": 1, "held_out": "a", **options}
    return ff.bench(toy.task(), algorithms=["fedavg"], out=out, **given)


def test_runs_in_bfloat16_say_so_and_are_the_same_on_both_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(precision.UNCHECKED, "1")
    assert why_not_stacked(HALF) is not None
    usual = bench(tmp_path / "usual").rows[0]
    half = bench(tmp_path / "half", precision="bfloat16").rows[0]
    batched = bench(tmp_path / "batched", precision="bfloat16", engine="batched").rows[0]
    assert (usual["precision"], half["precision"], batched["precision"]) == ("float32", "bfloat16", "bfloat16")
    assert half["model_sha256"] == batched["model_sha256"] != usual["model_sha256"]
    with pytest.raises(RecordsError, match=r"model.precision is not set there and \"bfloat16\" here"):
        bench(tmp_path / "usual", precision="bfloat16", resume=True)


def test_a_model_of_bfloat16_predicts_in_float32_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(precision.UNCHECKED, "1")
    folder = ff.train(toy.task(), "fedavg", tmp_path / "model", rounds=1, precision="bfloat16")
    assert "| precision | bfloat16 |" in (folder / "README.md").read_text()
    x = toy.domain("z").x
    exact, half = ff.load_model(folder), ff.load_model(folder, precision="bfloat16")
    assert exact.model.spec.precision == "float32"
    assert not torch.equal(exact.scores(x), half.scores(x))
    assert torch.allclose(exact.scores(x), half.scores(x), atol=0.05)
