"""The mathematics of federated domain generalization: pure functions on tensors that import torch alone."""

from farfield.math.averaging import ema, weighted_mean
from farfield.math.control_variates import control_update, server_control_update
from farfield.math.domain_split import order_of_clients, share_rows, split_domains
from farfield.math.fairness import Fairness, fairness
from farfield.math.gaussian import class_gaussians, gaussian_kl
from farfield.math.geometric_mean import GeometricAccumulator, weighted_geometric_mean, without_rounding_noise
from farfield.math.gradient_alignment import AlignedHead, aligned_cross_entropy
from farfield.math.gradient_matching import Matching, matching_direction
from farfield.math.head_gradients import (
    GradientMoments,
    linear_head_gradient,
    residuals,
    through_softmax,
    variance_derivatives,
)
from farfield.math.head_mixture import HeadMixture, mix_heads
from farfield.math.invariance import (
    fish_inner_product,
    fish_step,
    vrex_penalty,
)
from farfield.math.newton import Minimum, newton_minimum
from farfield.math.not_called_yet.domain_objectives import fishr_penalty, group_dro_weights, irm_penalty
from farfield.math.not_called_yet.gradient_variance import head_gradient_variance
from farfield.math.not_called_yet.linear_sem import (
    erm_solution,
    invariant_solution,
    local_solution,
    one_shot_average,
    population_risk,
)
from farfield.math.not_called_yet.masks import and_mask, masked_mean, sand_mask, sign_agreement
from farfield.math.proximal import proximal_penalty
from farfield.math.ranking import auroc
from farfield.math.robust_means import (
    GeometricMedian,
    coordinate_median,
    geometric_median,
    krum_order,
    mean_of,
    squared_distances,
    trimmed_mean,
)
from farfield.math.server_step import adam_step, sgd_step, yogi_step
from farfield.math.shift import gradient_cosines, prediction_disagreement, proxy_a_distance

__all__ = [
    "auroc",
    "Fairness",
    "GeometricAccumulator",
    "GeometricMedian",
    "GradientMoments",
    "HeadMixture",
    "Matching",
    "Minimum",
    "adam_step",
    "AlignedHead",
    "aligned_cross_entropy",
    "and_mask",
    "class_gaussians",
    "control_update",
    "coordinate_median",
    "ema",
    "erm_solution",
    "fairness",
    "fish_inner_product",
    "fish_step",
    "fishr_penalty",
    "gaussian_kl",
    "geometric_median",
    "gradient_cosines",
    "group_dro_weights",
    "head_gradient_variance",
    "invariant_solution",
    "irm_penalty",
    "krum_order",
    "linear_head_gradient",
    "local_solution",
    "masked_mean",
    "matching_direction",
    "mean_of",
    "mix_heads",
    "newton_minimum",
    "one_shot_average",
    "order_of_clients",
    "population_risk",
    "prediction_disagreement",
    "proximal_penalty",
    "proxy_a_distance",
    "residuals",
    "sand_mask",
    "server_control_update",
    "sgd_step",
    "share_rows",
    "sign_agreement",
    "split_domains",
    "squared_distances",
    "through_softmax",
    "trimmed_mean",
    "variance_derivatives",
    "vrex_penalty",
    "weighted_geometric_mean",
    "weighted_mean",
    "without_rounding_noise",
    "yogi_step",
]
