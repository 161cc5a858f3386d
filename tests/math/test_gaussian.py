import torch

from farfield.math import gaussian_kl


def _t(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


MU, SIGMA = _t([0.0, 1.0, -2.0], [0.5, 0.5, 0.5]), _t([1.0, 0.5, 2.0], [0.1, 1.0, 3.0])
MU_REF, SIGMA_REF = _t([0.0, 0.0, 0.0], [1.0, -1.0, 0.5]), _t([1.0, 1.0, 1.0], [0.2, 0.7, 1.5])


def test_divergence_and_its_gradients_match_the_golden_numbers() -> None:
    mu, sigma = MU.clone().requires_grad_(), SIGMA.clone().requires_grad_()
    divergence = gaussian_kl(mu, sigma, MU_REF, SIGMA_REF)
    expected = torch.tensor([3.625, 6.7096515866735125], dtype=torch.float64)
    torch.testing.assert_close(divergence, expected, rtol=1e-9, atol=0)
    divergence.mean().backward()
    grad_mu = _t([0.0, 0.5, -1.0], [-6.249999999999999, 1.5306122448979593, 0.0])
    grad_sigma = _t([0.0, -0.75, 0.75], [-3.75, 0.5204081632653064, 0.5])
    torch.testing.assert_close(mu.grad, grad_mu, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(sigma.grad, grad_sigma, rtol=1e-9, atol=1e-15)


def test_it_is_zero_only_between_equal_gaussians() -> None:
    assert torch.equal(gaussian_kl(MU, SIGMA, MU, SIGMA), torch.zeros(2, dtype=torch.float64))
    assert bool((gaussian_kl(MU, SIGMA, MU + 0.1, SIGMA) > 0).all())
    assert bool((gaussian_kl(MU, SIGMA, MU, 1.1 * SIGMA) > 0).all())


def test_it_agrees_with_torch_distributions() -> None:
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(MU, SIGMA), normal(MU_REF, SIGMA_REF)).sum(dim=1)
    torch.testing.assert_close(gaussian_kl(MU, SIGMA, MU_REF, SIGMA_REF), expected, rtol=1e-12, atol=0)


def test_one_reference_serves_all_samples() -> None:
    together = gaussian_kl(MU, SIGMA, MU_REF[1], SIGMA_REF[1])
    apart = torch.stack([gaussian_kl(m, s, MU_REF[1], SIGMA_REF[1]) for m, s in zip(MU, SIGMA, strict=True)])
    torch.testing.assert_close(together, apart, rtol=1e-14, atol=0)


def test_gradients_agree_with_finite_differences_in_all_arguments() -> None:
    arguments = tuple(t.clone().requires_grad_() for t in (MU, SIGMA, MU_REF, SIGMA_REF))
    assert torch.autograd.gradcheck(gaussian_kl, arguments)
