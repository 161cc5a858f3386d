"""linear-sem: training lands where the algebra of FedLOE's section 3 says, to the last digits that float32 has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farfield.math import population_risk
from farfield.records import RunFolder
from farfield.records.sealed import open_sealed
from farfield.runs.plan import Job, make_plan
from farfield.runs.single_run import run_job
from farfield.tasks.data_sets.linear_sem import LinearSEM

# golden: fedloe_linear_sem, three domains with σ2² = .1, 1, 4
ERM = [0.19047619047619038, 0.3809523809523808, 0.32380952380952355, -0.6476190476190479]
ONE_SHOT = [0.3922077922077925, 0.784415584415585, 0.24311688311688298, -0.4862337662337661]
LOCAL = [0.8, 1.6, 0.08, -0.16]

# One validation row in each domain is the least there can be; among 1,000 rows it hardly moves the moments.
SEM = LinearSEM(rows=1000)
LEAST = 1 / 1000


def trained(tmp_path: Path, algorithm: str, rounds: int, **settings: float | str) -> torch.Tensor:
    task = SEM.task()
    plan = make_plan(
        task,
        algorithms=[algorithm],
        held_out=["noise-9"],
        seeds=1,
        rounds=rounds,
        validation=LEAST,
        evaluate_every=rounds,
        settings=dict(settings),
    )
    job = Job(algorithm, "noise-9", 0)
    run_job(plan, task, job, tmp_path, checkpoint_every=rounds)
    checkpoint = RunFolder(tmp_path).latest_checkpoint()
    assert checkpoint is not None
    return checkpoint.tensors["model/parameters"]


def test_pooled_training_lands_on_equation_27(tmp_path: Path) -> None:
    weights = trained(tmp_path, "erm", rounds=1, local_epochs=1000, lr=0.05)
    assert weights.tolist() == pytest.approx(ERM, abs=5e-3)


def test_one_shot_averaging_lands_on_equation_28(tmp_path: Path) -> None:
    weights = trained(tmp_path, "fedavg", rounds=1, local_epochs=1000, lr=0.05, weighting="uniform")
    assert weights.tolist() == pytest.approx(ONE_SHOT, abs=5e-3)


@pytest.mark.slow
def test_averaging_after_every_step_lands_on_the_pooled_solution(tmp_path: Path) -> None:
    weights = trained(tmp_path, "fedavg", rounds=1000, local_epochs=1, lr=0.05)
    assert weights.tolist() == pytest.approx(ERM, abs=5e-3)


@pytest.mark.slow
def test_one_shot_averaging_is_nearer_to_the_invariant_solution_as_theorem_3_3_says(tmp_path: Path) -> None:
    invariant = torch.tensor([1.0, 2.0, 0.0, 0.0])
    erm = trained(tmp_path / "erm", "erm", rounds=1, local_epochs=1000, lr=0.05)
    one_shot = trained(tmp_path / "osa", "fedavg", rounds=1, local_epochs=1000, lr=0.05)
    assert float((one_shot - invariant).norm()) < float((erm - invariant).norm())
    assert float(one_shot[:2].norm() / one_shot[2:].norm()) > float(erm[:2].norm() / erm[2:].norm())


@pytest.mark.slow
def test_yet_its_risk_on_the_noisiest_domain_is_higher_and_the_measured_one_is_the_closed_form(tmp_path: Path) -> None:
    """Corollary 3.4 of the paper does not hold for every test noise; here σ2² = 9 and pooling wins."""
    risks = {}
    for name, algorithm in (("erm", "erm"), ("osa", "fedavg")):
        weights = trained(tmp_path / name, algorithm, rounds=1, local_epochs=1000, lr=0.05)
        measured = open_sealed(tmp_path / name)[-1][1]["loss"]
        exact = population_risk(
            weights.double(),
            torch.tensor(SEM.alpha_i).double(),
            torch.tensor(SEM.alpha_s).double(),
            1.5,
            9.0,
            SEM.sigma3_sq,
        )
        assert measured == pytest.approx(float(exact), rel=1e-4)
        risks[name] = measured
    assert risks["erm"] == pytest.approx(0.5886621315192713, rel=0.02)
    assert risks["osa"] == pytest.approx(1.5322071175577712, rel=0.02)
