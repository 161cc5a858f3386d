import pytest
import torch

from farfield.math import control_update, server_control_update


def _t(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


START = _t(1.0, 1.0)
ENDS = _t([0.6, 1.2], [0.9, 0.5])
SERVER = _t(0.1, -0.1)
CONTROLS = _t([0.2, 0.0], [0.0, -0.3])


def test_client_and_server_controls_match_the_golden_numbers() -> None:
    new = torch.stack(
        [control_update(c, SERVER, START, end, steps=4, lr=0.1) for c, end in zip(CONTROLS, ENDS, strict=True)]
    )
    expected = _t([1.1, -0.3999999999999999], [0.14999999999999994, 1.05])
    torch.testing.assert_close(new, expected, rtol=1e-9, atol=0)
    server = server_control_update(SERVER, (new - CONTROLS).sum(0), cohort=2, clients=5)
    torch.testing.assert_close(server, _t(0.31000000000000005, 0.09000000000000002), rtol=1e-9, atol=0)


def test_after_corrected_sgd_the_control_is_the_mean_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    control, server = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(3, generator=generator, dtype=torch.float64)
    end = start.clone()
    for gradient in gradients:
        end = end - 0.05 * (gradient - control + server)
    new = control_update(control, server, start, end, steps=6, lr=0.05)
    torch.testing.assert_close(new, gradients.mean(dim=0), rtol=1e-12, atol=1e-12)


def test_full_participation_keeps_the_server_control_the_mean_of_the_clients() -> None:
    changes = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    server = server_control_update(torch.zeros(3, dtype=torch.float64), changes.sum(0), cohort=4, clients=4)
    torch.testing.assert_close(server, changes.mean(dim=0), rtol=1e-14, atol=1e-16)


def test_no_change_leaves_the_server_control_alone() -> None:
    assert torch.equal(server_control_update(SERVER, torch.zeros(2), cohort=2, clients=9), SERVER)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        control_update(CONTROLS[0], SERVER, START, ENDS[0], steps=0, lr=0.1)
    with pytest.raises(ValueError, match=r"lr=0\.0"):
        control_update(CONTROLS[0], SERVER, START, ENDS[0], steps=1, lr=0.0)
    with pytest.raises(ValueError, match="1 clients"):
        server_control_update(SERVER, CONTROLS.sum(0), cohort=2, clients=1)
