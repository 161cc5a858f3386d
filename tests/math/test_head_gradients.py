import pytest
import torch
from torch.nn import functional as F

from farfield.math import fishr_penalty, head_gradient_variance, linear_head_gradient
from farfield.math.head_gradients import residuals


def _t(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


FEATURES = _t(
    [
        [0.001, 0.299, -0.274],
        [-0.891, -0.455, -0.992],
        [0.06, 1.34, -0.492],
        [-0.62, 0.49, 0.357],
        [0.105, -0.93, -0.029],
    ]
)
LABELS = torch.tensor([0, 1, 3, 2, 1])
WEIGHT = _t([[0.487, -0.941, -0.32], [-1.331, -0.903, -1.289], [-0.165, -0.887, 0.19], [0.11, -0.131, -1.762]])
BIAS = _t([-0.162, -0.015, 0.034, -0.459])

FISHR_DOMAINS = [
    (_t([[0.119, -0.641], [2.0, 0.762], [-1.199, 0.075], [0.577, -0.189]]), torch.tensor([1, 2, 1, 1])),
    (
        _t([[1.167, 1.939], [-0.176, 0.703], [0.037, 0.627], [-0.687, -0.079], [0.304, 1.399]]),
        torch.tensor([1, 2, 2, 0, 0]),
    ),
    (
        _t([[1.647, -0.992], [0.537, 0.903], [2.257, 1.689], [0.673, 0.631], [0.75, 2.524], [0.572, 0.696]]),
        torch.tensor([2, 0, 0, 1, 2, 2]),
    ),
]
FISHR_WEIGHT = _t([[-1.114, -0.012], [-0.444, 1.166], [0.653, -0.024]])
FISHR_BIAS = _t([0.134, -0.068, 0.21])
BINARY_FEATURES = _t(
    [
        [-0.005, 0.583, -1.291],
        [0.347, -1.688, -2.035],
        [-0.304, -0.9, 0.164],
        [2.245, -0.832, -0.624],
        [0.205, 0.493, -0.176],
        [-0.206, 0.702, 0.52],
    ]
)
BINARY_LABELS = _t([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])


def _loop_variance(features: torch.Tensor, errors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two passes over one gradient a sample, in float64."""
    gradients = errors.double().unsqueeze(2) * features.double().unsqueeze(1)
    weight = (gradients - gradients.mean(dim=0)).square().mean(dim=0)
    bias = (errors.double() - errors.double().mean(dim=0)).square().mean(dim=0)
    return weight, bias


def _exact_errors(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Residuals without the subtraction p − 1, sample by sample."""
    rows = []
    for row, label in zip(logits.double(), labels.tolist(), strict=True):
        probabilities = (row - row.max()).exp()
        probabilities = probabilities / probabilities.sum()
        others = [float(p) for k, p in enumerate(probabilities) if k != label]
        rows.append([-sum(others) if k == label else float(p) for k, p in enumerate(probabilities)])
    return _t(rows)


def test_gradient_and_fediir_penalty_match_the_golden_numbers() -> None:
    target_weight = _t(
        [[-0.048, -0.098, -0.081], [0.106, -0.081, -0.003], [0.088, -0.058, -0.011], [0.011, 0.006, -0.123]]
    )
    target_bias = _t([0.008, 0.136, -0.155, 0.086])
    features, weight, bias = (t.clone().requires_grad_() for t in (FEATURES, WEIGHT, BIAS))
    weight_grad, bias_grad = linear_head_gradient(features, features @ weight.T + bias, LABELS)
    expected_weight_grad = _t(
        [
            [-0.019833892389889814, -0.059834756977928547, 0.03095976994997741],
            [-0.014076967194881232, 0.2714868478661474, 0.04534409829748396],
            [0.07909682367639202, -0.08434174171214263, -0.08527870959549276],
            [-0.04518596409162094, -0.12731034917607623, 0.008974841348031403],
        ]
    )
    expected_bias_grad = _t([-0.036064473769421165, -0.01374288340719194, 0.010372704029035262, 0.03943465314757778])
    torch.testing.assert_close(weight_grad, expected_weight_grad, rtol=1e-9, atol=0)
    torch.testing.assert_close(bias_grad, expected_bias_grad, rtol=1e-9, atol=0)

    penalty = (weight_grad - target_weight).square().sum() + (bias_grad - target_bias).square().sum()
    assert penalty.item() == pytest.approx(0.2543049361460974, rel=1e-9)
    penalty.backward()
    torch.testing.assert_close(
        weight.grad,
        _t(
            [
                [0.003693471493095299, -0.0027897018405760882, -0.001786860318162223],
                [0.010691197770834543, 0.0944459515577098, 0.0063137596288307864],
                [-0.009441768449395184, -0.014501559426680905, -0.0206462255618561],
                [-0.0049429008145346455, -0.07715469029045281, 0.01611932625118756],
            ]
        ),
        rtol=1e-9,
        atol=0,
    )
    torch.testing.assert_close(
        bias.grad,
        _t([-0.004869545445952788, -0.029965018651629795, 0.08326066815370087, -0.048426104056118295]),
        rtol=1e-9,
        atol=0,
    )
    torch.testing.assert_close(
        features.grad,
        _t(
            [
                [-0.031175452038308595, 0.005578635502602751, 0.006706656357964722],
                [0.032774924707113504, -0.03869086357807747, 0.01621193160681971],
                [-0.04830427611224628, 0.020480613426531888, 0.02275637163735878],
                [-0.02780395804469569, 0.05305550666540877, 0.047505619963849],
                [0.08960861877438071, -0.09979338598997689, 0.047612413373855064],
            ]
        ),
        rtol=1e-9,
        atol=0,
    )


def test_the_gradient_is_what_autograd_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (40,), generator=generator)
    head = torch.nn.Linear(7, 5, dtype=torch.float64)
    logits = head(features)
    expected = torch.autograd.grad(F.cross_entropy(logits, labels), [head.weight, head.bias])
    torch.testing.assert_close(linear_head_gradient(features, logits, labels), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("shape", [(-1, 1), (-1,)])
def test_one_logit_means_binary_cross_entropy(shape: tuple[int, ...]) -> None:
    head = torch.nn.Linear(3, 1, dtype=torch.float64)
    logits = head(BINARY_FEATURES)
    loss = F.binary_cross_entropy_with_logits(logits.squeeze(1), BINARY_LABELS)
    expected = torch.autograd.grad(loss, [head.weight, head.bias])
    for labels in (BINARY_LABELS, BINARY_LABELS.long()):
        gradient = linear_head_gradient(BINARY_FEATURES, logits.reshape(shape), labels)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


def test_variances_match_the_golden_numbers() -> None:
    expected = _t(
        [
            [
                0.13695571907540155, 0.011924555779663514, 0.2542420589375062, 0.047726154402027876,
                0.06998484197695902, 0.012913244841272525, 0.05392058352726779, 0.1768791846586829, 0.1008465495170587,
            ],
            [
                0.03342129808527626, 0.2920603955661467, 0.04015260275393033, 0.266029336384724,
                0.026892939147929215, 0.18986173872530804, 0.2010447771535676, 0.11933016504574379, 0.23159347127937852,
            ],
            [
                0.7066208095059182, 0.4326523042582116, 0.14219558683652028, 0.6307973070121542,
                0.4732917886121583, 1.072605126943531, 0.23255406323064573, 0.20743624438836755, 0.31968955512196134,
            ],
        ]
    )  # fmt: skip
    torch.testing.assert_close(_fishr_variances(FISHR_WEIGHT), expected, rtol=1e-9, atol=0)


def test_binary_variance_matches_the_golden_numbers() -> None:
    logits = BINARY_FEATURES @ _t([0.5, -1.0, 0.25]) + 0.1
    weight, bias = head_gradient_variance(BINARY_FEATURES, logits, BINARY_LABELS)
    expected = _t([[0.030646727571435637, 0.34545649415571167, 0.5841587988977778]])
    torch.testing.assert_close(weight, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(bias, _t([0.25054904813784573]), rtol=1e-9, atol=0)


def _fishr_variances(weight: torch.Tensor) -> torch.Tensor:
    rows = []
    for features, labels in FISHR_DOMAINS:
        parts = head_gradient_variance(features, features @ weight.T + FISHR_BIAS, labels)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def test_fishr_penalty_and_its_gradient_match_the_golden_numbers() -> None:
    weight = FISHR_WEIGHT.clone().requires_grad_()
    variances = _fishr_variances(weight)
    penalty = fishr_penalty(variances, reduction="sum")
    assert penalty.item() == pytest.approx(1.3632526976721524, rel=1e-9)
    assert fishr_penalty(variances).item() == pytest.approx(0.45441756589071747, rel=1e-9)
    penalty.backward()
    expected = _t(
        [
            [-0.013486861294431662, -0.07423307857301609],
            [-0.41637119230220065, 0.44713819102870644],
            [0.42985805348561, -0.37290511267773496],
        ]
    )
    torch.testing.assert_close(weight.grad, expected, rtol=1e-6, atol=0)


def test_clients_can_compute_their_part_of_the_fishr_gradient_from_the_mean_variance_alone() -> None:
    expected = _t(
        [
            [
                [0.02210401085778191, -0.006838703145439773],
                [-0.030696466174484627, -0.017023974174801282],
                [0.008592455275069355, 0.02386267734799663],
            ],
            [
                [-0.0063058213858879775, 0.003295160116989493],
                [0.09908425140092714, 0.14361825198538902],
                [-0.09277843004279474, -0.14691341213707299],
            ],
            [
                [-0.02928505082877564, -0.0706895355584436],
                [-0.4847589778478323, 0.32054391363445234],
                [0.5140440282325187, -0.24985437829805335],
            ],
        ]
    )
    weight = FISHR_WEIGHT.clone().requires_grad_()
    variances = _fishr_variances(weight)
    mean = variances.detach().mean(dim=0)
    for row, part in zip(variances, expected, strict=True):
        (gradient,) = torch.autograd.grad((row - mean).square().sum(), weight, retain_graph=True)
        torch.testing.assert_close(gradient, part, rtol=1e-6, atol=0)


def test_both_functions_agree_with_finite_differences() -> None:
    features = FEATURES.clone().requires_grad_()
    logits = (FEATURES @ WEIGHT.T + BIAS).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, a: linear_head_gradient(z, a, LABELS), (features, logits))
    assert torch.autograd.gradcheck(lambda z, a: head_gradient_variance(z, a, LABELS), (features, logits))
    binary = (BINARY_FEATURES @ _t([0.5, -1.0, 0.25])).requires_grad_()
    inputs = BINARY_FEATURES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z, a: head_gradient_variance(z, a, BINARY_LABELS), (inputs, binary))


def test_variance_agrees_with_a_loop_over_samples() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(60, 8, generator=generator, dtype=torch.float64) + 2.0
    logits = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(6, (60,), generator=generator)
    expected = _loop_variance(features, logits.softmax(dim=1) - F.one_hot(labels, 6))
    torch.testing.assert_close(head_gradient_variance(features, logits, labels), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("margin", [10.0, 25.0, 40.0])
def test_float32_variance_keeps_its_digits_near_convergence(margin: float) -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(80, 5, generator=generator).relu() + 0.5
    labels = torch.randint(4, (80,), generator=generator)
    # Confident and right: residuals of about exp(-margin), whose squares leave the range of float32 at 40 and above.
    logits = torch.randn(80, 4, generator=generator) + margin * F.one_hot(labels, 4)
    weight, bias = head_gradient_variance(features.double(), logits.double(), labels)
    expected_weight, expected_bias = _loop_variance(features, _exact_errors(logits, labels))
    torch.testing.assert_close(weight, expected_weight, rtol=1e-10, atol=0)
    torch.testing.assert_close(bias, expected_bias, rtol=1e-10, atol=0)
    single_weight, single_bias = head_gradient_variance(features, logits, labels)
    assert single_weight.dtype == torch.float32
    torch.testing.assert_close(single_weight.double(), expected_weight, rtol=1e-6, atol=1e-44)
    torch.testing.assert_close(single_bias.double(), expected_bias, rtol=1e-6, atol=1e-44)


def test_variance_keeps_its_digits_when_all_samples_nearly_agree() -> None:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    features = 3.0 + 1e-7 * noise[:, :4]
    logits = _t([1.0, -0.5, 0.3]) + 1e-7 * noise[:, 4:7]
    labels = torch.zeros(50, dtype=torch.int64)
    expected, expected_bias = _loop_variance(features, _exact_errors(logits, labels))
    weight, bias = head_gradient_variance(features, logits, labels)
    # The true variance is some 1e-14 of the squared mean: its difference from E[g²] would have two digits left.
    torch.testing.assert_close(weight, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(bias, expected_bias, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_is_never_negative_and_zero_for_equal_samples(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    for scale in (1e-6, 1.0, 1e4):
        row = scale * torch.randn(1, 6, generator=generator, dtype=dtype)
        jitter = 1e-7 * scale * torch.randn(30, 6, generator=generator, dtype=dtype)
        logits = torch.randn(1, 3, generator=generator, dtype=dtype).expand(30, -1)
        labels = torch.ones(30, dtype=torch.int64)
        weight, bias = head_gradient_variance(row + jitter, logits, labels)
        assert bool((weight >= 0).all())
        assert bool((bias >= 0).all())
        weight, _ = head_gradient_variance(row.expand(30, -1), logits, labels)
        squared_mean = linear_head_gradient(row, logits[:1], labels[:1])[0].square()
        assert bool((weight <= 1e-28 * squared_mean).all())


def test_one_sample_has_no_variance() -> None:
    weight, bias = head_gradient_variance(FEATURES[:1], FEATURES[:1] @ WEIGHT.T, LABELS[:1])
    assert torch.equal(weight, torch.zeros(4, 3, dtype=torch.float64))
    assert torch.equal(bias, torch.zeros(4, dtype=torch.float64))


def test_residuals_of_sure_predictions_are_exact_in_relative_terms() -> None:
    sure = residuals(torch.tensor([[80.0, 0.0, 0.0]]), torch.tensor([0]))
    small = float(torch.tensor(-80.0, dtype=torch.float64).exp())
    torch.testing.assert_close(sure.double(), _t([[-2 * small, small, small]]), rtol=1e-5, atol=0)
    binary = residuals(torch.tensor([80.0, -80.0]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(binary.double(), _t([[-small], [small]]), rtol=1e-5, atol=0)


def test_both_functions_work_under_vmap_over_a_cohort() -> None:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(3, 10, 4, generator=generator, dtype=torch.float64)
    logits = torch.randn(3, 10, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (3, 10), generator=generator)
    for function in (linear_head_gradient, head_gradient_variance):
        together = torch.func.vmap(function)(features, logits, labels)
        for client in range(3):
            alone = function(features[client], logits[client], labels[client])
            torch.testing.assert_close(tuple(part[client] for part in together), alone, rtol=1e-12, atol=1e-15)
