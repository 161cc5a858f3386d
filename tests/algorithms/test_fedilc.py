"""FedILC: the exchange of gradients and variances gives the exact gradient of the penalty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from farfield.algorithms import AlgorithmError, build
from farfield.federation.federation import Replies, Reply
from farfield.federation.phase import Named
from farfield.math import head_gradient_variance, weighted_geometric_mean
from farfield.models import ModelSpec, ModelState, build_model, task_loss
from farfield.tasks.task import Domain
from tests.toy import SPEC, domains, federation, initial, lose, sent

# golden: fishr_variance_linear_head
DOMAINS = [
    ([[0.119, -0.641], [2.0, 0.762], [-1.199, 0.075], [0.577, -0.189]], [1, 2, 1, 1]),
    ([[1.167, 1.939], [-0.176, 0.703], [0.037, 0.627], [-0.687, -0.079], [0.304, 1.399]], [1, 2, 2, 0, 0]),
    (
        [[1.647, -0.992], [0.537, 0.903], [2.257, 1.689], [0.673, 0.631], [0.75, 2.524], [0.572, 0.696]],
        [2, 0, 0, 1, 2, 2],
    ),
]
W = [[-1.114, -0.012], [-0.444, 1.166], [0.653, -0.024]]
B = [0.134, -0.068, 0.21]
VARIANCE_0 = [0.13695571907540155, 0.011924555779663514, 0.2542420589375062, 0.047726154402027876, 0.06998484197695902,
              0.012913244841272525, 0.05392058352726779, 0.1768791846586829, 0.1008465495170587]  # fmt: skip
PARTS = [
    [[0.02210401085778191, -0.006838703145439773], [-0.030696466174484627, -0.017023974174801282],
     [0.008592455275069355, 0.02386267734799663]],
    [[-0.0063058213858879775, 0.003295160116989493], [0.09908425140092714, 0.14361825198538902],
     [-0.09277843004279474, -0.14691341213707299]],
    [[-0.02928505082877564, -0.0706895355584436], [-0.4847589778478323, 0.32054391363445234],
     [0.5140440282325187, -0.24985437829805335]],
]  # fmt: skip
PENALTY = {"sum": 1.3632526976721524, "mean": 0.45441756589071747}


def sites() -> list[Domain]:
    """The worked example's rows, each client with one row more that goes to validation."""
    return [Domain(name, torch.tensor(z), torch.tensor(y)) for name, (z, y) in zip("abc", DOMAINS, strict=True)]


class AllRows:
    """A client that trains on all rows of a domain; the worked example leaves none for validation."""

    def __init__(self, domain: Domain) -> None:
        from farfield.federation.client import Client, Rows

        rows = Rows({domain.name: domain}, [(domain.name, torch.arange(len(domain)))])
        self.client = Client(0, domain.name, domain.name, rows, rows, seed=0, round=1, phase="x")


def test_variances_and_the_parts_of_the_penaltys_gradient_are_the_worked_example(double: None) -> None:
    algorithm = build("fedilc-fishr")
    model = build_model(ModelSpec(featurizer="identity", input_shape=(2,), outputs=3, hidden=()), 0)
    model.vector.copy_(torch.cat([torch.tensor(W).reshape(-1), torch.tensor(B)]))
    clients = [AllRows(d).client for d in sites()]
    first = [algorithm.gradient_and_variance(c, model) for c in clients]
    assert first[0]["variance"].tolist() == pytest.approx(VARIANCE_0, rel=1e-9)
    mean = torch.stack([r["variance"] for r in first]).mean(dim=0)
    for client, part in zip(clients, PARTS, strict=True):
        sent = algorithm.variance_gradient(client, model, mean)["penalty_gradient"]
        torch.testing.assert_close(sent[:6].view(3, 2), torch.tensor(part), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("spec", [SPEC, SPEC.model_copy(update={"dropout": 0.5})], ids=["plain", "dropout"])
@pytest.mark.parametrize("at_once", [1024, 7])
def test_moments_are_kept_until_the_second_exchange_and_made_again_where_they_were_lost(
    double: None, at_once: int, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farfield.federation.client.ROWS_AT_ONCE", at_once)
    algorithm = build("fedilc-inter-geo")
    model = build_model(spec, 0)
    domain = domains(1)[0]
    client = AllRows(Domain(domain.name, domain.x.double(), domain.y)).client
    mean = torch.zeros_like(algorithm.gradient_and_variance(client, model)["variance"])
    with_them = algorithm.variance_gradient(client, model, mean)
    assert client.state == {}, "nobody needs them after the second exchange"
    without = algorithm.variance_gradient(client, model, mean)
    assert without["deviation"] == with_them["deviation"]
    assert torch.equal(without["penalty_gradient"], with_them["penalty_gradient"])
    algorithm.gradient_and_variance(client, model)
    (name,) = client.state
    client.state[name] = client.state[name] + 7.0
    assert algorithm.variance_gradient(client, model, mean)["deviation"] > with_them["deviation"] + 1, "they are used"


def test_moments_do_not_outlive_their_round() -> None:
    algorithm = build("fedilc-fishr")
    with federation(algorithm, domains(3)) as fed:
        fed.begin(1, range(3))
        model = initial().state()
        fed.map(algorithm.gradient_and_variance, model)
        assert fed.states == {}, "a checkpoint does not need them"
        fed.begin(2, range(3))
        seen: list[set[str]] = []
        run = algorithm.variance_gradient

        def looked(client: Any, model: Any, mean_variance: Tensor) -> Named:
            seen.append(set(client.state))
            return run(client, model, mean_variance)

        looked.__name__ = "variance_gradient"
        looked.__sends__ = run.__sends__  # type: ignore[attr-defined]
        algorithm.variance_gradient = looked  # type: ignore[method-assign]
        fed.map(looked, model, mean_variance=torch.zeros(model.parameters[fed.layout.final].shape))
        assert seen == [set()] * 3


def penalty(vector: Tensor, chosen: Sequence[Domain], spec: ModelSpec) -> float:
    """Σ_e ‖v_e − v̄‖², written down once more from all rows at once."""
    model = build_model(spec, 0)
    model.vector.copy_(vector)
    variances = []
    with torch.no_grad():
        for domain in chosen:
            inputs = model.head.before_last(model.features(domain.x))
            weight, bias = head_gradient_variance(inputs, model.head.last(inputs), domain.y)
            variances.append(torch.cat([weight.reshape(-1), bias]) if spec.head_bias else weight.reshape(-1))
    stacked = torch.stack(variances)
    return float((stacked - stacked.mean(dim=0)).square().sum())


@pytest.mark.parametrize("at_once", [1024, 7])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(("outputs", "bias"), [(3, True), (3, False), (1, True), (1, False)])
def test_the_parts_add_up_to_finite_differences_of_the_whole_penalty_through_the_featurizer(
    double: None, head: str, at_once: int, outputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farfield.federation.client.ROWS_AT_ONCE", at_once)
    spec = SPEC.model_copy(update={"head": head, "head_hidden": 5, "outputs": outputs, "head_bias": bias})
    chosen = [Domain(d.name, d.x.double(), d.y % max(outputs, 2)) for d in domains(3)]
    algorithm = build("fedilc-inter-geo")
    model = build_model(spec, 0)
    start = model.vector.clone()
    clients = [AllRows(d).client for d in chosen]
    sent = [algorithm.gradient_and_variance(c, model) for c in clients]
    for domain, reply in zip(chosen, sent, strict=True):
        model.backward(task_loss(model(domain.x), domain.y))
        torch.testing.assert_close(reply["gradient"], model.gradient, rtol=1e-10, atol=1e-14)
    variances = torch.stack([reply["variance"] for reply in sent])
    total = sum(
        algorithm.variance_gradient(c, model, variances.mean(dim=0))["penalty_gradient"].clone() for c in clients
    )
    for seed in range(3):
        direction = torch.randn(len(start), generator=torch.Generator().manual_seed(seed))
        step = 1e-5
        slope = (penalty(start + step * direction, chosen, spec) - penalty(start - step * direction, chosen, spec)) / (
            2 * step
        )
        assert float(total @ direction) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1 / 3), ("sum", 1.0)])
def test_the_step_is_the_mean_gradient_plus_the_weighted_penalty(reduction: str, factor: float) -> None:
    settings = {"server_optimizer": "sgd", "server_lr": 1.0, "server_momentum": 0.0, "fishr_reduction": reduction}
    steps = {}
    for weight in (0.0, 2.0):
        algorithm = build("fedilc-fishr", {**settings, "fishr": weight})
        with federation(algorithm, domains(3)) as fed:
            fed.begin(1, range(3))
            state = algorithm.start(initial().state())
            first = sent(fed, algorithm.gradient_and_variance, state.model)
            second = sent(fed, algorithm.variance_gradient, state.model, mean_variance=mean_of(first, "variance"))
            after = algorithm.round(fed, state)
            steps[weight] = after.model.parameters - state.model.parameters
            assert after.diagnostics["fishr_penalty"] > 0
    torch.testing.assert_close(steps[0.0], -mean_of(first, "gradient"), rtol=1e-5, atol=1e-7)
    expected = -2.0 * factor * 3 * mean_of(second, "penalty_gradient")
    torch.testing.assert_close(steps[2.0] - steps[0.0], expected, rtol=1e-4, atol=1e-7)


def test_with_no_penalty_and_the_arithmetic_mean_it_is_fedsgd() -> None:
    plain = {"server_optimizer": "sgd", "server_lr": 0.5, "server_momentum": 0.0, "weighting": "uniform", "lr": 1.0}
    vectors = []
    for name, settings in (("fedilc-fishr", {**plain, "fishr": 0.0}), ("fedsgd", plain)):
        algorithm = build(name, settings)
        with federation(algorithm, domains(3)) as fed:
            state = algorithm.start(initial().state())
            for number in (1, 2):
                fed.begin(number, range(3))
                state = algorithm.round(fed, state)
            vectors.append(state.model.parameters)
    torch.testing.assert_close(vectors[0], vectors[1], rtol=0, atol=1e-7)


def test_the_geometric_mean_of_the_papers_example_is_applied_over_clients() -> None:
    """golden: weighted_geometric_mean_simple, [1, 4, −9] → −5/3 in one coordinate and [1, 4, 4] in the other."""
    gradients = torch.tensor([[1.0, 2.0], [4.0, 4.0], [-9.0, 8.0]])
    made = Replies(tuple(Reply(i, str(i), 1, {"gradient": g, "loss": 0.0}) for i, g in enumerate(gradients)))
    aggregate = build("fedilc-geometric").aggregate(made)
    assert aggregate.direction.tolist() == pytest.approx([5 / 3, -4.0], rel=1e-6)
    assert 0 < aggregate.diagnostics["geometric_to_arithmetic"] < 1


def test_one_silent_client_freezes_a_weight_only_in_the_papers_definition() -> None:
    rows = torch.tensor([[1.0], [4.0], [0.0]])
    results = {}
    for zeros in ("neither", "paper", "published"):
        algorithm = build("fedilc-geometric", {"zeros": zeros})
        results[zeros] = float(algorithm.rule(rows, torch.ones(3), rows.mean(dim=0)).direction)  # type: ignore[union-attr]
    # Steps of 1, 4 and 0 are gradients of −1, −4 and 0: all three count as negative, (1 · 4 · 1e-10)^⅓.
    published = pytest.approx(4e-10 ** (1 / 3), rel=1e-6)
    assert results == {"neither": pytest.approx(4 / 3), "paper": 0.0, "published": published}


@pytest.mark.parametrize("inner", ["batches", "samples"])
def test_intra_geo_is_the_geometric_mean_of_gradients_taken_one_by_one(double: None, inner: str) -> None:
    domain = domains(1)[0]
    domain = Domain("a", domain.x[:20].double(), domain.y[:20])
    algorithm = build("fedilc-intra-geo", {"inner": inner, "batch_size": 6})
    model = build_model(SPEC, 0)
    sent = algorithm.gradient_and_variance(AllRows(domain).client, model)["gradient"]
    again = AllRows(domain).client
    groups = (
        list(again.batches(6))
        if inner == "batches"
        else [(domain.x[i : i + 1], domain.y[i : i + 1]) for i in range(20)]
    )
    rows = []
    for x, y in groups:
        model.backward(torch.nn.functional.cross_entropy(model(x), y))
        rows.append(model.gradient.clone())
    torch.testing.assert_close(sent, weighted_geometric_mean(torch.stack(rows), "neither"), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("batch", [0, 5, 6, 64])
def test_intra_arith_is_the_mean_of_gradients_taken_one_by_one(double: None, batch: int) -> None:
    """20 rows: batches of one size (5, all rows), where the method takes one large pass, and a last short one (6)."""
    domain = domains(1)[0]
    domain = Domain("a", domain.x[:20].double(), domain.y[:20])
    algorithm = build("fedilc-intra-arith", {"batch_size": batch})
    model = build_model(SPEC, 0)
    sent = algorithm.gradient_and_variance(AllRows(domain).client, model)
    rows, losses = [], []
    for x, y in AllRows(domain).client.batches(batch):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        model.backward(loss)
        rows.append(model.gradient.clone())
        losses.append(float(loss.detach()))
    torch.testing.assert_close(sent["gradient"], torch.stack(rows).mean(dim=0), rtol=1e-7, atol=1e-12)
    assert sent["loss"] == pytest.approx(sum(losses) / len(losses))


def test_a_gradient_counts_as_one_step_however_many_batches_it_is_made_of() -> None:
    for name in ("fedilc-geometric", "fedilc-intra-geo", "fedilc-intra-arith", "fedsgd"):
        algorithm = build(name, {"batch_size": 8})
        with federation(algorithm, domains(2)) as fed:
            fed.begin(1, range(2))
            algorithm.round(fed, algorithm.start(initial().state()))
            assert fed.traffic.local_steps == 2


def mean_of(replies: Sequence[dict[str, Any]], name: str) -> Tensor:
    return torch.stack([values[name] for values in replies]).mean(dim=0)


@pytest.mark.parametrize(
    ("first", "second", "kept", "said"),
    [
        (set(), set(), {0, 1, 2}, None),
        ({0}, set(), {1, 2}, None),
        ({0}, {0}, {1, 2}, None),
        (set(), {0}, {1, 2}, "1 clients answered once only; the Fishr gradient lacks"),
        ({0}, {1}, set(), "no Fishr term"),
        ({0, 1}, set(), set(), "one client is left"),
    ],
)
def test_only_clients_of_the_first_exchange_count_in_the_second(
    first: set[int], second: set[int], kept: set[int], said: str | None
) -> None:
    settings = {"server_optimizer": "sgd", "server_lr": 1.0, "server_momentum": 0.0, "fishr": 100.0}
    algorithm = build("fedilc-fishr", settings)
    with federation(algorithm, domains(3), quorum=0.2) as fed:
        fed.begin(1, range(3))
        state = algorithm.start(initial().state())
        here = sent(fed, algorithm.gradient_and_variance, state.model, sorted({0, 1, 2} - first))
        mean = mean_of(here, "variance")
        parts = sent(fed, algorithm.variance_gradient, state.model, sorted(kept), mean_variance=mean) if kept else []
        lose(fed, {"gradient_and_variance": first, "variance_gradient": second})
        after = algorithm.round(fed, state)
    expected = -mean_of(here, "gradient")
    if kept:
        expected -= 100.0 * len(parts) * mean_of(parts, "penalty_gradient") / len(here)
    step = after.model.parameters - state.model.parameters
    torch.testing.assert_close(step, expected, rtol=1e-4, atol=1e-6)
    assert [said in note for note in after.notes] == [True] if said else not after.notes


def test_memory_of_the_variances_does_not_grow_with_the_rows() -> None:
    """The largest tensor that any operation makes is that of one pass, however many passes there are."""
    algorithm = build("fedilc-intra-geo", {"batch_size": 64})
    spec = SPEC.model_copy(update={"hidden": (32,)})
    largest = []
    for rows in (3000, 12000):
        x = torch.randn((rows, 4), generator=torch.Generator().manual_seed(0))
        domain = Domain("a", x, torch.arange(rows) % 3)
        model = build_model(spec, 0)
        mean = algorithm.gradient_and_variance(AllRows(domain).client, model)["variance"].clone()
        with Largest() as seen:
            algorithm.gradient_and_variance(AllRows(domain).client, model)
            algorithm.variance_gradient(AllRows(domain).client, model, mean)
        largest.append(seen.elements)
    assert largest[1] <= 1.1 * max(largest[0], 12000)  # the permutation of the rows is the one thing that grows


class Largest(TorchDispatchMode):
    """Counts the elements of the largest tensor that is made while it is on."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@pytest.mark.parametrize("at_once", [1024, 7])
def test_the_recorded_penalty_is_the_worked_examples(
    double: None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farfield.federation.client.ROWS_AT_ONCE", at_once)
    spec = ModelSpec(featurizer="identity", input_shape=(2,), outputs=3)
    model = build_model(spec, 0)
    model.vector.copy_(torch.tensor([*(v for row in W for v in row), *B]))
    clients = [AllRows(domain).client for domain in sites()]
    for reduction, value in PENALTY.items():
        algorithm = build("fedilc-fishr", {"fishr_reduction": reduction})

        class Sent:
            layout = model.layout

            def map(
                self, phase: Callable[..., Named], state: ModelState, among: object = None, **shared: Tensor
            ) -> Replies:
                replies = []
                for number, client in enumerate(clients):
                    model.load(state)
                    values = {
                        k: v.clone() if isinstance(v, Tensor) else v for k, v in phase(client, model, **shared).items()
                    }
                    replies.append(Reply(number, client.domain, client.samples, values))
                return Replies(tuple(replies))

        after = algorithm.round(Sent(), algorithm.start(model.state()))
        assert after.diagnostics["fishr_penalty"] == pytest.approx(value, rel=1e-9)


def test_the_ratio_is_of_the_geometric_mean_whoever_rules_and_also_inside_clients() -> None:
    ratios = {}
    for name in ("fedilc-inter-geo", "fedilc-inter-geo+fedomg", "fedilc-intra-geo"):
        algorithm = build(name)
        with federation(algorithm, domains(3)) as fed:
            fed.begin(1, range(3))
            ratios[name] = algorithm.round(fed, algorithm.start(initial().state())).diagnostics[
                "geometric_to_arithmetic"
            ]
    assert ratios["fedilc-inter-geo"] == pytest.approx(ratios["fedilc-inter-geo+fedomg"], rel=1e-6)
    assert 0 < ratios["fedilc-intra-geo"] < 1


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(AlgorithmError, match="running statistics"):
        build("fedilc-geometric").check(SPEC.model_copy(update={"norm": "local"}), "classification", 3)
    with pytest.raises(AlgorithmError, match="at least 2"):
        build("fedilc-geometric").check_server(1)
    with pytest.raises(AlgorithmError, match="at least 2"):
        build("fedilc-inter-geo").check(SPEC, "classification", 1)
    with pytest.raises(AlgorithmError, match="class labels"):
        build("fedilc-fishr").check(SPEC, "regression", 3)
    with pytest.raises(AlgorithmError, match="running statistics"):
        build("fedilc-fishr").check(SPEC.model_copy(update={"norm": "average"}), "classification", 3)


def test_the_published_rule_counts_a_silent_client_as_a_negative_gradient() -> None:
    """Gradients [4, 0, 0, 0] and [−4, 0, 0, 0] in two coordinates; the direction is minus their mean."""
    gradients = torch.zeros(4, 2)
    gradients[0] = torch.tensor([4.0, -4.0])
    made = Replies(tuple(Reply(i, str(i), 1, {"gradient": g, "loss": 0.0}) for i, g in enumerate(gradients)))
    for name in ("fedilc-geometric", "fedilc-inter-geo"):
        direction = build(name, {"zeros": "published"}).aggregate(made).direction
        assert direction.tolist() == pytest.approx([-1.0, 4.4721359549995794e-08], rel=1e-6)


#: A convolution's bias, then GroupNorm with one channel per group, which takes any constant out again.
NORMALISED = ModelSpec(featurizer="fedavg-cnn", input_shape=(1, 16, 16), outputs=3, hidden=(8, 8, 16), norm="group")
BIASES = ("featurizer.0.bias", "featurizer.4.bias")


def images() -> Domain:
    return Domain("a", torch.rand((24, 1, 16, 16), generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedilc-geometric", {}),
        ("fedilc-inter-geo", {}),
        ("fedilc-intra-geo", {"inner": "samples"}),
        ("fedilc-intra-geo", {"batch_size": 6}),
    ],
)
def test_what_groupnorm_makes_zero_has_no_sign_in_a_geometric_mean(name: str, settings: dict[str, Any]) -> None:
    algorithm, model = build(name, settings), build_model(NORMALISED, 0)
    run = algorithm.gradient if name == "fedilc-geometric" else algorithm.gradient_and_variance
    sent = torch.as_tensor(run(AllRows(images()).client, model)["gradient"])
    for bias in BIASES:
        assert sent[model.layout.slices[bias]].tolist() == [0.0] * 8
    assert float((sent == 0).double().mean()) < 0.05, "the other entries keep their sign"


def test_rounding_noise_is_there_where_no_geometric_mean_is_taken() -> None:
    model = build_model(NORMALISED, 0)
    sent = torch.as_tensor(build("fedilc-fishr").gradient_and_variance(AllRows(images()).client, model)["gradient"])
    noise = torch.cat([sent[model.layout.slices[bias]] for bias in BIASES])
    assert 0 < float(noise.abs().max()) < 1e-5 * float(sent.abs().max())


def test_without_groupnorm_a_gradient_is_sent_as_it_is() -> None:
    """A pixel of 1e-9 has a gradient that small, and its sign is right: nothing cancels there."""
    domain = domains(1)[0]
    x = domain.x.clone()
    x[:, 0] *= 1e-9
    model = build_model(SPEC, 0)
    sent = torch.as_tensor(
        build("fedilc-geometric").gradient(AllRows(Domain("a", x, domain.y)).client, model)["gradient"]
    )
    model.backward(task_loss(model(x), domain.y))
    torch.testing.assert_close(sent, model.gradient, rtol=1e-5, atol=0)
    assert 0 < float(sent.abs()[sent != 0].min()) < 1e-8 * float(sent.abs().max())


@pytest.mark.parametrize(
    ("name", "settings", "idle", "used"),
    [
        ("fedilc-geometric", {}, {"weighting", "momentum", "optimizer"}, {"zeros", "lr", "batch_size", "local_epochs"}),
        ("fedilc-fishr", {}, {"zeros"}, {"weighting", "fishr", "fishr_reduction", "batch_size"}),
        ("fedilc-fishr", {"fishr": 0.0}, {"fishr_reduction"}, {"fishr"}),
        ("fedilc-inter-geo", {}, {"weight_decay"}, {"zeros"}),
        ("fedilc-intra-arith", {}, {"zeros"}, {"batch_size"}),
        ("fedilc-intra-geo", {}, {"momentum"}, {"zeros", "batch_size"}),
        ("fedilc-fishr+fedilc-geometric", {}, {"momentum"}, {"zeros"}),
        ("fedavg+fedilc-geometric", {}, set(), {"zeros", "batch_size", "local_epochs", "momentum"}),
    ],
)
def test_settings_without_an_effect_are_named(
    name: str, settings: dict[str, Any], idle: set[str], used: set[str]
) -> None:
    named = build(name, settings).params.idle()
    assert idle <= set(named)
    assert not used & set(named)
