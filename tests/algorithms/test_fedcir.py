"""FedCiR: literals from golden.json ('fedcir_server', 'gaussian_kl'), the generator, warm-up, guard, ablations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.algorithms import AlgorithmError, FedAvg, State, build
from farfield.algorithms.fedcir_generator import Generator, consensus_loss
from farfield.federation.client import Batch, Rows
from farfield.math import class_gaussians
from farfield.models import ModelSpec, build_model, head_logits, probabilities, task_loss
from farfield.protocol.measurement import predict
from farfield.tasks.task import Domain
from tests.toy import SPEC, domains, federation, initial

GAUSSIAN = SPEC.model_copy(update={"representation": "gaussian"})
CLIENT_LOGITS = [
    [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
    [[0.0, 1.0, 0.0], [1.0, -1.0, 3.0]],
    [[1.0, 1.0, 1.0], [0.5, 0.5, 0.0]],
]
MU = [[0.0, 1.0, -2.0], [0.5, 0.5, 0.5]]
SIGMA = [[1.0, 0.5, 2.0], [0.1, 1.0, 3.0]]
CLASS_MU = [[0.0, 0.0, 0.0], [1.0, -1.0, 0.5]]
CLASS_SIGMA = [[1.0, 1.0, 1.0], [0.2, 0.7, 1.5]]


def run(algorithm: FedAvg, rounds: int = 3, spec: ModelSpec = GAUSSIAN) -> tuple[list[State], list[dict[str, Tensor]]]:
    """The states of some rounds, and what was broadcast with the model in each."""
    states, broadcasts = [], []
    with federation(algorithm, domains(3), spec) as fed:
        plain_map = fed.map

        def watched(phase: Any, model: Any, **shared: Any) -> Any:
            broadcasts.append(shared)
            return plain_map(phase, model, **shared)

        fed.map = watched  # type: ignore[method-assign]
        state = algorithm.start(initial(spec).state())
        for number in range(1, rounds + 1):
            fed.begin(number, range(fed.clients))
            state = algorithm.round(fed, state)
            states.append(state)
    return states, broadcasts


def fedcir(name: str = "fedcir", **settings: Any) -> FedAvg:
    return build(name, {"lr": 0.1, "batch_size": 8, **settings})


# Golden numbers.


@pytest.mark.usefixtures("double")
def test_the_generators_loss_averages_probabilities_inside_the_logarithm() -> None:
    logits, labels = torch.tensor(CLIENT_LOGITS), torch.tensor([0, 2])
    loss = float(consensus_loss(logits, labels, torch.tensor([0.5, 0.3, 0.2])))
    assert loss == pytest.approx(0.7396649157269741, rel=1e-12)
    # Neither the cross-entropy of the mean logits nor the mean of the cross-entropies.
    assert abs(loss - 0.6550541990511608) > 0.05
    assert abs(loss - 0.9401423723983913) > 0.05


@pytest.mark.usefixtures("double")
def test_one_logit_counts_as_two_classes_in_the_generators_loss() -> None:
    logits = torch.tensor([[[1.0], [-2.0]], [[0.5], [3.0]]])
    two = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    weights, labels = torch.tensor([0.25, 0.75]), torch.tensor([1, 0])
    assert float(consensus_loss(logits, labels, weights)) == float(consensus_loss(two, labels, weights))
    mean = 0.25 * torch.sigmoid(logits[0, 0, 0]) + 0.75 * torch.sigmoid(logits[1, 0, 0])
    assert float(consensus_loss(logits[:, :1], labels[:1], weights)) == pytest.approx(float(-mean.log()), rel=1e-12)


@pytest.mark.usefixtures("double")
def test_class_gaussians_are_the_maximum_likelihood_fit() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 2.0], [5.0, 5.0], [0.0, 1.0], [2.0, 1.0], [1.0, 4.0]])
    mu, sigma = class_gaussians(features, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert mu.tolist() == [[3.0, 3.0], [1.0, 2.0]]
    expected = [[1.632993161855452, 1.4142135623730951], [0.816496580927726, 1.4142135623730951]]
    assert sigma.tolist() == [pytest.approx(row, rel=1e-12) for row in expected]
    _, floored = class_gaussians(features, torch.tensor([0, 0, 0, 1, 1, 1]), 2, floor=1.5)
    assert floored.tolist() == [[1.632993161855452, 1.5], [1.5, 1.5]]


def test_a_class_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="every one of the 3 classes"):
        class_gaussians(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), 3)


@pytest.mark.usefixtures("double")
def test_the_local_objective_adds_the_golden_divergence() -> None:
    """A model that gives the golden means and deviations: the objective rises by λ_align times the batch mean."""

    class Fixed:
        head = torch.nn.Linear(3, 2)

        def represent(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor(MU), torch.tensor(SIGMA)

        def draw(self, mu: Tensor, sigma: Tensor) -> Tensor:
            return mu

    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]))
    shared = {"class_mu": torch.tensor(CLASS_MU), "class_sigma": torch.tensor(CLASS_SIGMA)}
    algorithm = fedcir(lambda_align=0.25)
    plain = task_loss(Fixed.head(torch.tensor(MU)), batch.y)
    rise = algorithm.loss(Fixed(), batch, **shared) - plain  # type: ignore[arg-type]
    assert float(rise.detach()) == pytest.approx(0.25 * 5.167325793336756, rel=1e-12)


# The generator.


def generator_and_heads() -> tuple[Generator, Tensor, Any]:
    """Three heads of a 3-class model that agree roughly: what three clients may have sent."""
    layout = build_model(GAUSSIAN, seed=0).layout
    rng = torch.Generator().manual_seed(1)
    common = torch.randn(layout.head.stop - layout.head.start, generator=rng)
    heads = common + 0.3 * torch.randn((3, len(common)), generator=rng)
    return Generator(classes=3, noise=4, hidden=16, features=layout.features), heads, layout


def test_training_lowers_the_generators_loss_and_the_ensemble_recognises_what_it_makes() -> None:
    made, heads, layout = generator_and_heads()
    weights = torch.full((3,), 1 / 3)
    rng = torch.Generator().manual_seed(0)
    parameters = made.initial(rng, torch.float32)
    labels = torch.arange(3).repeat(50)
    inputs = made.draw(labels, torch.float32, rng)

    def judge(features: Tensor, labels: Tensor) -> Tensor:
        return consensus_loss(head_logits(layout, heads, features), labels, weights)

    slots: dict[str, Tensor] = {}
    losses = [float(judge(made(parameters, inputs), labels))]
    for _ in range(4):
        parameters, slots = made.trained(parameters, slots, judge, rng, steps=25, batch=32, lr=0.01)
        losses.append(float(judge(made(parameters, inputs), labels)))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1 * losses[0]
    mean = head_logits(layout, heads, made(parameters, inputs)).softmax(-1).mean(0)
    assert float((mean.argmax(-1) == labels).double().mean()) > 0.98


def test_the_generators_steps_are_torchs_adam() -> None:
    made, heads, layout = generator_and_heads()
    weights = torch.full((3,), 1 / 3)

    def judge(features: Tensor, labels: Tensor) -> Tensor:
        return consensus_loss(head_logits(layout, heads, features), labels, weights)

    start = made.initial(torch.Generator().manual_seed(0), torch.float32)
    rng = torch.Generator().manual_seed(5)
    ours, slots = made.trained(start, {}, judge, rng, steps=2, batch=8, lr=0.01)
    ours, _ = made.trained(ours, slots, judge, rng, steps=3, batch=8, lr=0.01)

    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01)
    rng = torch.Generator().manual_seed(5)
    for _ in range(5):
        labels = torch.randint(3, (8,), generator=rng)
        optimizer.zero_grad()
        judge(made(theirs, made.draw(labels, torch.float32, rng)), labels).backward()
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-5)
    assert not start.requires_grad


def test_the_generator_is_linear_batchnorm_relu_linear() -> None:
    made = Generator(classes=3, noise=4, hidden=5, features=2)
    rng = torch.Generator().manual_seed(0)
    parameters = made.initial(rng, torch.float32)
    first, scale, shift, second, bias = made.parts(parameters)
    assert len(parameters) == sum(made.sizes)
    assert scale.tolist() == [1.0] * 5
    assert shift.tolist() == [0.0] * 5
    scale.copy_(torch.rand(5, generator=rng) + 0.5)
    shift.copy_(torch.randn(5, generator=rng))
    inputs = made.draw(torch.tensor([0, 1, 2, 1, 0, 2]), torch.float32, rng)
    assert inputs[:, :3].argmax(1).tolist() == [0, 1, 2, 1, 0, 2]
    before = F.linear(inputs, first)
    expected = F.linear(F.batch_norm(before, None, None, scale, shift, training=True).relu(), second, bias)
    torch.testing.assert_close(made(parameters, inputs), expected)
    fixed = made(parameters, inputs[:2], made.statistics(parameters, inputs))
    torch.testing.assert_close(fixed, expected[:2])


@pytest.mark.parametrize("head", [{"head": "linear"}, {"head": "mlp", "head_hidden": 5}, {"head_bias": False}])
@pytest.mark.parametrize("outputs", [3, 1])
def test_heads_given_as_rows_answer_as_the_models_they_come_from(head: dict[str, Any], outputs: int) -> None:
    models = [build_model(GAUSSIAN.model_copy(update={**head, "outputs": outputs}), seed=s) for s in range(3)]
    layout = models[0].layout
    features = torch.randn((7, layout.features), generator=torch.Generator().manual_seed(0))
    logits = head_logits(layout, torch.stack([m.vector[layout.head] for m in models]), features)
    torch.testing.assert_close(logits, torch.stack([m.head(features) for m in models]).detach())


# The round.


def test_the_regularisers_wait_for_a_trained_generator() -> None:
    states, broadcasts = run(fedcir(warmup=2), rounds=3)
    everything = {"generator", "generator_statistics", "class_mu", "class_sigma"}
    assert [set(shared) for shared in broadcasts] == [set(), set(), everything]
    assert [int(s.generator_rounds) for s in states] == [1, 2, 3]
    plain, _ = run(fedcir(lambda_reg=0.0, lambda_align=0.0), rounds=3)
    assert [s.model.sha256() == p.model.sha256() for s, p in zip(states, plain, strict=True)] == [True, True, False]


def test_without_warm_up_the_untrained_generator_counts_from_the_first_round() -> None:
    _, broadcasts = run(fedcir(warmup=0), rounds=1)
    assert set(broadcasts[0]) == {"generator", "generator_statistics", "class_mu", "class_sigma"}
    assert bool((broadcasts[0]["class_sigma"] >= 0.5).all())


def test_only_what_a_weight_asks_for_is_broadcast() -> None:
    assert set(run(fedcir("fedcir-reg"), rounds=2)[1][1]) == {"generator", "generator_statistics"}
    assert set(run(fedcir("fedcir-align"), rounds=2)[1][1]) == {"class_mu", "class_sigma"}
    states, broadcasts = run(fedcir(lambda_reg=0.0, lambda_align=0.0), rounds=2)
    assert broadcasts == [{}, {}]
    assert set(states[-1].extras) == {"generator"}


def test_the_heads_that_judge_the_generator_are_those_the_clients_sent() -> None:
    """What is recorded as the generator's loss is eq. (15) on the uploaded heads, computed here from the replies."""
    algorithm = fedcir(generator_draws=16)
    with federation(algorithm, domains(3), GAUSSIAN) as fed:
        before = algorithm.start(initial(GAUSSIAN).state())
        fed.begin(1, range(3))
        replies = fed.map(algorithm.train, before.model)
        after = algorithm.round(fed, before)
        draws = fed.generator("draws")
    models = [build_model(GAUSSIAN, seed=0) for _ in replies]
    for model, update in zip(models, replies.stack("update"), strict=True):
        model.vector.add_(update)
    made = Generator(classes=3, noise=32, hidden=128, features=6)
    labels = torch.arange(3).repeat_interleave(16)
    inputs = made.draw(labels, torch.float64, draws).float()
    features = made(after.generator, inputs, after.generator_statistics)
    chosen = torch.stack([m.head(features).softmax(-1) for m in models]).mean(0)[torch.arange(48), labels]
    assert after.diagnostics["generator_loss"] == pytest.approx(float(-chosen.log().mean().detach()), rel=1e-4)
    mu, sigma = class_gaussians(features, labels, 3, floor=0.5)
    torch.testing.assert_close(after.class_mu, mu, rtol=0, atol=1e-4)
    torch.testing.assert_close(after.class_sigma, sigma, rtol=0, atol=1e-4)


def test_the_generators_loss_falls_and_is_recorded_with_the_divergence() -> None:
    states, _ = run(fedcir(), rounds=8)
    assert states[-1].diagnostics["generator_loss"] < 0.5 * states[0].diagnostics["generator_loss"]
    assert ["divergence" in s.diagnostics for s in states] == [False] + [True] * 7
    assert all(s.notes == () for s in states)


def test_the_alignment_brings_representations_to_their_classes_gaussian() -> None:
    state = run(fedcir(), rounds=4)[0][-1]
    shared = {name: state.extras[name] for name in ("class_mu", "class_sigma")}
    divergences = []
    for weight in (0.0, 3e-3, 3e-1):
        algorithm = fedcir(lambda_align=weight, local_epochs=4)
        with federation(algorithm, domains(3), GAUSSIAN) as fed:
            fed.begin(5, range(3))
            divergences.append(fed.map(algorithm.train, state.model, **shared).stack("divergence"))
    assert bool((divergences[1] < divergences[0]).all())
    assert bool((divergences[2] < 0.75 * divergences[0]).all())


@pytest.mark.parametrize("rate", [1e6, 1e38])
def test_a_generator_that_diverges_is_put_back_and_the_clients_never_see_it(rate: float) -> None:
    states, broadcasts = run(fedcir(generator_lr=rate), rounds=3)
    plain, _ = run(fedcir(lambda_reg=0.0, lambda_align=0.0), rounds=3)
    for state in states:
        (note,) = state.notes
        assert note.startswith("the training of the generator failed")
        assert torch.equal(state.generator, states[0].generator)
        assert all(bool(torch.isfinite(t).all()) for t in state.extras.values())
        assert int(state.generator_rounds) == 0
    # It has never been trained, so the regularisers are off and this is FedAvg.
    assert broadcasts == [{}, {}, {}]
    assert states[-1].model.sha256() == plain[-1].model.sha256()


@pytest.mark.parametrize(("name", "weight"), [("fedcir-reg", "lambda_align"), ("fedcir-align", "lambda_reg")])
def test_an_ablation_is_fedcir_without_the_other_term(name: str, weight: str) -> None:
    ablation, _ = run(fedcir(name))
    without, _ = run(fedcir(**{weight: 0.0}))
    assert ablation[-1].model.sha256() == without[-1].model.sha256()
    assert all(torch.equal(ablation[-1].extras[n], t) for n, t in without[-1].extras.items())
    assert ablation[-1].model.sha256() != run(fedcir())[0][-1].model.sha256()
    with pytest.raises(AlgorithmError, match=f"has no parameter '{weight}'"):
        fedcir(name, **{weight: 0.5})


def test_it_is_fedavg_to_the_bit_when_both_weights_are_zero() -> None:
    off, _ = run(fedcir(lambda_reg=0.0, lambda_align=0.0))
    average, _ = run(build("fedavg", {"lr": 0.1, "batch_size": 8, "weighting": "uniform"}))
    assert off[-1].model.sha256() == average[-1].model.sha256()


@pytest.mark.parametrize("spec", [{"outputs": 1}, {"head": "mlp", "head_hidden": 5}, {"norm": "average"}])
def test_it_trains_one_logit_mlp_heads_and_batch_norm(spec: dict[str, Any]) -> None:
    binary = [Domain(d.name, d.x[d.y < 2], d.y[d.y < 2]) for d in domains(3)]
    chosen = GAUSSIAN.model_copy(update=spec)
    algorithm = fedcir(lr=0.3)
    with federation(algorithm, binary if chosen.outputs == 1 else domains(3), chosen) as fed:
        state = algorithm.start(initial(chosen).state())
        losses = []
        for number in range(1, 13):
            fed.begin(number, range(3))
            state = algorithm.round(fed, state)
            losses.append((state.diagnostics["loss"], state.diagnostics["generator_loss"]))
        assert fed.events == []
    assert state.class_mu.shape == (max(chosen.outputs, 2), 6)
    assert losses[-1][0] < 0.7 * losses[1][0]
    assert losses[-1][1] < 0.5 * losses[0][1]


def test_a_task_without_classes_is_refused() -> None:
    with pytest.raises(AlgorithmError, match="a regression task has no classes"):
        fedcir().check(GAUSSIAN, "regression", 3)


# Several samples at test time.


def rows(domain: Domain) -> Rows:
    return Rows({domain.name: domain}, [(domain.name, torch.arange(len(domain)))])


@pytest.mark.parametrize("outputs", [3, 1])
def test_test_samples_average_the_predicted_probabilities(outputs: int) -> None:
    spec = GAUSSIAN.model_copy(update={"outputs": outputs, "test_samples": 5})
    model = build_model(spec, seed=0).eval()
    x = domains(1)[0].x[:6]
    torch.manual_seed(3)
    outcome = probabilities(model.predict(x))
    torch.manual_seed(3)
    mu, sigma = model.represent(x)
    noise = torch.randn((5, *mu.shape))
    expected = torch.stack([probabilities(model.head(mu + sigma * e)) for e in noise]).mean(0)
    torch.testing.assert_close(outcome, expected)
    assert float((outcome - probabilities(model(x))).detach().abs().max()) > 1e-3


def test_many_test_samples_come_close_to_the_expectation_and_none_is_the_mean() -> None:
    domain = domains(1)[0]
    models = {n: build_model(GAUSSIAN.model_copy(update={"test_samples": n}), seed=0) for n in (0, 1, 4000, 4001)}
    outcome = {n: probabilities(predict(m, rows(domain))).detach() for n, m in models.items()}
    assert torch.equal(outcome[0], probabilities(models[0](domain.x)).detach())
    assert float((outcome[4000] - outcome[4001]).abs().max()) < 0.03
    assert float((outcome[1] - outcome[4000]).abs().max()) > 0.1


def test_predicting_with_samples_gives_the_same_numbers_and_leaves_the_random_state_alone() -> None:
    model = build_model(GAUSSIAN.model_copy(update={"test_samples": 3}), seed=0)
    data = rows(domains(1)[0])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = predict(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(predict(model, data), first)


def test_a_plain_model_has_nothing_to_sample() -> None:
    model = build_model(SPEC.model_copy(update={"test_samples": 7}), seed=0).eval()
    x = domains(1)[0].x
    assert torch.equal(model.predict(x), model(x))


def test_validation_uses_the_test_samples_too() -> None:
    outcomes = []
    for samples in (0, 1):
        spec = GAUSSIAN.model_copy(update={"test_samples": samples})
        algorithm = fedcir()
        with federation(algorithm, domains(2), spec) as fed:
            fed.begin(1, [0, 1])
            outcomes.append(
                [
                    [float(r.values["loss"]) for r in fed.map_over([0, 1], algorithm.evaluate, initial(spec).state())]
                    for _ in range(2)
                ]
            )
    assert outcomes[0][0] == outcomes[0][1]
    assert outcomes[1][0] == outcomes[1][1]
    assert outcomes[0][0] != outcomes[1][0]
