"""The linear probe side by side with scikit-learn and the paper's recipe: `python tests/benchmarks/probe.py`.

CPU time on one thread to reach an objective within 1e-3 of scikit-learn's own optimum: 20 000 examples, 512 features,
50 classes. Features are those of an untrained transformer (what a probe meets), and correlated Gaussians. Exits with 1
when a goal is missed.
"""
# ruff: noqa: E402  the number of threads is read when numpy and torch are imported

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sameloss.languages.hmm import HMM
from sameloss.learners.contexts import model_tokens
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.downstream import L2
from sameloss.measures.downstream_features import features
from sameloss.measures.downstream_recipes import adamw_probe
from sameloss.measures.logistic import fit

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
N, DIMENSIONS, CLASSES = 20000, 512, 50


def gaussian() -> tuple[Tensor, Tensor]:
    """Correlated features whose scales span e^-3 and labels from a noisy linear rule."""
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(DIMENSIONS, DIMENSIONS, generator=g) / DIMENSIONS**0.5
    x = (torch.randn(N, DIMENSIONS, generator=g) * torch.linspace(0, -3, DIMENSIONS).exp()) @ mix
    rule = torch.randn(DIMENSIONS, CLASSES, generator=g) * 3 / DIMENSIONS**0.5
    return x, (x @ rule / x.std() + torch.randn(N, CLASSES, generator=g)).argmax(1)


def representation() -> tuple[Tensor, Tensor]:
    """Token vectors of an untrained transformer on a hidden chain of 50 states; the label is a state."""
    chain = HMM.random(states=CLASSES, vocab=100, length=8, seed=3)
    sentences = chain.sample(N, 1)
    config = TransformerConfig(vocab=100, length=8, width=DIMENSIONS // 8, heads=4)
    tokens = torch.from_numpy(model_tokens(sentences, config))
    task = next(iter(chain.tasks))
    return features(build(config, 0), tokens).flatten(1), torch.from_numpy(chain.labels(task, sentences))


def timed(work: Callable[[], object], runs: int = 3) -> tuple[float, object]:
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def main() -> int:
    missed = False
    print(f"{'':18}{'':32}{'objective':>11}{'CPU s':>8}{'ours/peer':>11}{'goal':>8}")
    for name, (x, y) in {"Gaussian": gaussian(), "representation": representation()}.items():
        x = (x - x.mean(0)) / (x - x.mean(0)).square().mean().sqrt()
        classes = int(y.max()) + 1

        def objective(weight: Tensor, bias: Tensor, x: Tensor = x, y: Tensor = y) -> float:
            loss = F.cross_entropy(F.linear(x.double(), weight.double(), bias.double()), y)
            return float(loss + L2 / 2 * weight.double().square().sum())

        def peer(tol: float, x: Tensor = x, y: Tensor = y) -> LogisticRegression:
            return LogisticRegression(C=1 / (L2 * N), max_iter=3000, tol=tol).fit(x.numpy(), y.numpy())

        seconds, model = timed(lambda x=x, y=y, classes=classes: fit(x, y, classes, L2, 1e-3))
        mine = objective(model.weight, model.bias)
        print(f"{name:18}{'ours':32}{mine:11.6f}{seconds:8.2f}", flush=True)
        for tol in (1e-4, 1e-5):
            theirs, found = timed(lambda tol=tol: peer(tol), 1)
            value = objective(torch.from_numpy(found.coef_), torch.from_numpy(found.intercept_))
            met = mine <= value * 1.001 and theirs / seconds >= 2
            # The default tolerance of 1e-4 stops early; the goal is against a run that reaches the same optimum.
            verdict = ("met" if met else "MISSED") if value <= mine * 1.001 else ""
            missed |= verdict == "MISSED"
            who, ratio = f"scikit-learn lbfgs, tol {tol:g}", theirs / seconds
            print(f"{name:18}{who:32}{value:11.6f}{theirs:8.2f}{ratio:10.2f}x{verdict:>8}", flush=True)
            if verdict:
                break
        recipe, _ = timed(lambda x=x, y=y, classes=classes: adamw_probe(x, y, x, y, classes, seed=0, epochs=10), 1)
        print(
            f"{name:18}{'torch AdamW, 100 epochs':32}{'':11}{10 * recipe:8.2f}{10 * recipe / seconds:10.2f}x",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
