"""The linear probe: multinomial logistic regression solved to its optimum, scored on held-out examples."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.measures.logistic import fit

L2 = 1e-4  # chosen once, for every probe of the book


@dataclass(frozen=True)
class ProbeResult:
    """Scores on held-out examples (cross-entropy in nats) and the training objective that was reached.

    right: the probability given to the right answer, example by example.
    """

    accuracy: Estimate
    cross_entropy: Estimate
    brier: Estimate
    objective: float = math.nan
    right: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)


def score(log_probs: Float[Tensor, "n C"], labels: Int[Tensor, " n"]) -> ProbeResult:
    """Accuracy, cross-entropy and Brier score sum_c (p_c - y_c)^2 of predicted log-probabilities (n, C)."""
    log_probs = log_probs.double()
    error = log_probs.exp() - F.one_hot(labels, log_probs.shape[1])
    hits = (log_probs.argmax(1) == labels).double()
    own = log_probs.gather(1, labels[:, None]).squeeze(1)
    accuracy, cross_entropy, brier = (Estimate.of(x.cpu().numpy()) for x in (hits, -own, (error**2).sum(1)))
    return ProbeResult(accuracy, cross_entropy, brier, right=own.exp().cpu().numpy())


def bayes_ceiling(posteriors: Float[np.ndarray, "n C"]) -> ProbeResult:
    """What the best predictor expects to score: E max p, E H(p) and E (1 - |p|^2) over p(class | sentence) (n, C)."""
    p = np.asarray(posteriors, dtype=np.float64)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1)
    return ProbeResult(Estimate.of(p.max(1)), Estimate.of(entropy), Estimate.of(1 - (p**2).sum(1)))


def linear_probe(
    features_train: Float[Tensor, "n ..."],
    labels_train: Int[Tensor, " n"],
    features_test: Float[Tensor, "m ..."],
    labels_test: Int[Tensor, " m"],
    classes: int,
    l2: float = L2,
    tolerance: float = 1e-3,
) -> ProbeResult:
    """Minimise mean cross-entropy + l2/2 |W|^2 (free intercept) over the features, flattened to (n, D).

    Features are centred and divided by their root mean square on the training set, one number for all of them, so
    that l2 means the same for every model. `tolerance`: relative distance of the objective from its minimum.
    UserError for a class that never occurs, fewer examples than classes, or features that are not finite.
    """
    train, test = checked(features_train, labels_train, features_test, labels_test, classes)
    log_probs, objective = fit_and_predict(train, labels_train, test, classes, l2, tolerance)
    return replace(score(log_probs, labels_test), objective=objective)


def fit_and_predict(
    train: Float[Tensor, "n D"],
    labels: Int[Tensor, " n"],
    test: Float[Tensor, "m D"],
    classes: int,
    l2: float = L2,
    tolerance: float = 1e-3,
) -> tuple[Float[Tensor, "m C"], float]:
    """The probe's log-probabilities on `test` (m, C), nats, and the objective reached: see `linear_probe`."""
    mean = train.mean(0)
    scale = (train - mean).square().mean().sqrt().clamp_min(1e-12)
    train, test = (train - mean) / scale, (test - mean) / scale
    model = fit(train, labels, classes, l2, tolerance)
    return model.log_probs(test), model.objective


def checked(
    features_train: Tensor, labels_train: Tensor, features_test: Tensor, labels_test: Tensor, classes: int
) -> tuple[Float[Tensor, "n D"], Float[Tensor, "m D"]]:
    """Both feature sets flattened to two dimensions in float32, or the UserError that says what is wrong with them."""
    sets = {"training": (features_train, labels_train), "test": (features_test, labels_test)}
    for name, (features, labels) in sets.items():
        if len(features) != len(labels):
            raise UserError(f"{name} set: {len(features)} feature rows and {len(labels)} labels; they must match")
        if len(labels) == 0:
            raise UserError(f"{name} set: no examples")
        if not torch.isfinite(features).all():
            raise UserError(f"{name} set: {int((~torch.isfinite(features)).sum())} features are not finite numbers")
        if labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{name} set: labels {int(labels.min())}..{int(labels.max())}; allowed: 0..{classes - 1}")
    if len(labels_train) < classes:
        raise UserError(f"{len(labels_train)} training examples for {classes} classes; at least one a class is needed")
    missing = (torch.bincount(labels_train, minlength=classes) == 0).nonzero().flatten().tolist()
    if missing:
        raise UserError(f"class {missing[0]} never occurs among the {len(labels_train)} training labels")
    train, test = features_train.flatten(1).float(), features_test.flatten(1).float()
    if train.shape[1] != test.shape[1]:
        raise UserError(f"{train.shape[1]} training features and {test.shape[1]} test features; they must match")
    return train, test
