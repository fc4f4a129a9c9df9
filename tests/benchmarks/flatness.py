"""Time to a 1 % standard error of the Fisher trace, side by side: `python tests/benchmarks/flatness.py [GRAMMAR]`.

One transformer (2 layers, width 128) is trained on the grammar of a file (without one SAMELOSS_REFERENCE_GRAMMAR is
used). Every method then gives independent values of the same trace (a context, or a batch of contexts with its random
vectors); its time to 1 % is its CPU time a value times (relative spread / 0.01)^2. Prints our ratio to each peer and
the goals; exits with 1 when a goal is missed.
Peers get the model as it is usually written, with every layer at every position (as in BertForMaskedLM); the last line
shows the fastest of them on our model, which stops at the masked one.
That the methods agree is for tests/test_flatness_peers.py.
Peers want an environment of their own, because their requirements replace torch:
pip install --no-deps pyhessian opacus backpack-for-pytorch curvlinops-for-pytorch einops einconv opt_einsum unfoldNd
linear_operator
"""
# ruff: noqa: E402  the number of threads is read when numpy and torch are imported

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sameloss.languages.pcfg import PCFG
from sameloss.learners.contexts import contexts
from sameloss.learners.evaluate import kl_to_truth
from sameloss.learners.pretrain import TrainConfig, pretrain
from sameloss.learners.stack import member
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.flatness import fisher_per_context

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
BATCH = 128  # contexts under one random vector, for the methods that use them

Values = Callable[[Tensor, Tensor], list[float]]  # tokens, position -> independent values of the trace


class Result(NamedTuple):
    who: str
    mean: float
    stderr: float
    seconds: float  # CPU time to a standard error of 1 %
    complete: bool  # every parameter counts, and the model is the usual one


class Usual(nn.Module):
    """The same function as it is usually written: logits everywhere, then the masked position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        return self.model(tokens)[torch.arange(len(tokens)), position]


class Packed(nn.Module):
    """The model with tokens and position in one tensor (B, T + 1), as the peers want their data."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x[:, :-1].contiguous(), x[:, -1])


def packed(tokens: Tensor, position: Tensor) -> Tensor:
    return torch.cat([tokens, position[:, None]], dim=1)


def drawn(logits: Tensor) -> Tensor:
    """One token a context from the model itself."""
    return torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def batches(tokens: Tensor, position: Tensor, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(tokens.split(size), position.split(size), strict=True)


def ours(model: nn.Module) -> Values:
    pad = model.config.pad
    return lambda t, p: fisher_per_context(model, (t, p), "sampled", chunk=BATCH, pad=pad).tolist()


def plain_hutchinson(model: nn.Module) -> Values:
    """Double backward with Gaussian vectors on a batch, as it is usually written (labels from the model)."""
    params = list(model.parameters())

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found = []
        for t, p in batches(tokens, position):
            logits = model(t, p)
            first = torch.autograd.grad(F.cross_entropy(logits, drawn(logits.detach())), params, create_graph=True)
            v = [torch.randn_like(p) for p in params]
            second = torch.autograd.grad(sum((g * x).sum() for g, x in zip(first, v, strict=True)), params)
            found.append(float(sum((h * x).sum() for h, x in zip(second, v, strict=True))))
        return found

    return values


def papers_fifty(model: nn.Module) -> Values:
    """50 tokens a context, one whole gradient each (Liu et al. 2022, B.1)."""
    params = list(model.parameters())

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found = []
        for t, p in batches(tokens, position, 1):
            log_p = model(t, p).log_softmax(-1)[0]
            norms = []
            for v in torch.multinomial(log_p.detach().exp(), 50, replacement=True):
                gradients = torch.autograd.grad(log_p[v], params, retain_graph=True)
                norms.append(float(sum(g.square().sum() for g in gradients)))
            found.append(float(np.mean(norms)))
        return found

    return values


def vmap_grad(model: nn.Module) -> Values:
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss(params: dict[str, Tensor], tokens: Tensor, position: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (tokens[None], position[None])), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found: list[float] = []
        for t, p in batches(tokens, position, 32):
            with torch.no_grad():
                labels = drawn(model(t, p))
            found += sum(g.flatten(1).square().sum(1) for g in each(params, t, p, labels).values()).tolist()
        return found

    return values


def pyhessian(model: nn.Module) -> Values:
    from pyhessian import hessian

    wrapped = Packed(copy.deepcopy(model))

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found = []
        for t, p in batches(tokens, position):
            x = packed(t, p)
            with torch.no_grad():
                labels = drawn(wrapped(x))
            wrapped.zero_grad()
            operator = hessian(wrapped, nn.CrossEntropyLoss(), data=(x, labels), cuda=False)
            found.append(float(np.mean(operator.trace(maxIter=2, tol=0.0))))
        return found

    return values


def curvlinops(kind: str) -> Callable[[nn.Module], Values]:
    def method(model: nn.Module) -> Values:
        import curvlinops as peer

        wrapped = Packed(model)
        params = [p for p in wrapped.parameters() if p.requires_grad]

        def values(tokens: Tensor, position: Tensor) -> list[float]:
            found = []
            for t, p in batches(tokens, position):
                x = packed(t, p)
                with torch.no_grad():
                    labels = drawn(wrapped(x))
                data = [(x, labels)]
                operator = getattr(peer, kind)(wrapped, nn.CrossEntropyLoss(), params, data, check_deterministic=False)
                found.append(float(peer.hutchinson_trace(operator, num_matvecs=2)))
            return found

        return values

    return method


def opacus(model: nn.Module) -> Values:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    inner = copy.deepcopy(model)
    # Its hooks need a batch dimension everywhere: positions are looked up for every sentence.
    own = inner.model if isinstance(inner, Usual) else inner
    own._positions = lambda tokens: own.position(torch.arange(tokens.shape[1]).repeat(len(tokens), 1))
    wrapped = GradSampleModuleFastGradientClipping(Packed(inner), loss_reduction="sum", use_ghost_clipping=True).train()

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found: list[float] = []
        for t, p in batches(tokens, position):
            logits = wrapped(packed(t, p))
            F.cross_entropy(logits, drawn(logits.detach()), reduction="sum").backward()
            found += wrapped.get_norm_sample().square().tolist()
            wrapped.zero_grad()
        return found

    return values


def backpack(model: nn.Module) -> Values:
    """Linear layers only: it has no rule for LayerNorm, and none for an Embedding without a batch dimension."""
    from backpack import backpack as context
    from backpack import extend
    from backpack.extensions import BatchL2Grad

    inner = copy.deepcopy(model)
    linear = [extend(module) for module in inner.modules() if isinstance(module, nn.Linear)]

    def values(tokens: Tensor, position: Tensor) -> list[float]:
        found: list[float] = []
        for t, p in batches(tokens, position):
            logits = inner(t, p)
            labels = drawn(logits.detach())
            with context(BatchL2Grad()):
                F.cross_entropy(logits, labels, reduction="sum").backward()
            found += sum(p.batch_l2 for module in linear for p in module.parameters()).tolist()
            inner.zero_grad()
        return found

    return values


class Method(NamedTuple):
    who: str
    package: str
    make: Callable[[nn.Module], Values]
    contexts: int  # how many are used to measure spread and time
    complete: bool = True
    usual: bool = True  # on the model as usually written


METHODS = [
    Method("ours: ghost norms, one token, exact head", "sameloss", ours, 4096, usual=False),
    Method("Hutchinson as usually written", "torch", plain_hutchinson, 32 * BATCH),
    Method("the paper's 50 tokens a context", "torch", papers_fifty, 40),
    Method("vmap(grad), one token", "torch", vmap_grad, 4096),
    Method("PyHessian", "pyhessian", pyhessian, 32 * BATCH),
    Method("curvlinops Hessian", "curvlinops", curvlinops("HessianLinearOperator"), 32 * BATCH),
    Method("curvlinops GGN", "curvlinops", curvlinops("GGNLinearOperator"), 32 * BATCH),
    Method("curvlinops MC-Fisher", "curvlinops", curvlinops("FisherMCLinearOperator"), 32 * BATCH),
    Method("opacus ghost norms, one token", "opacus", opacus, 4096),
    Method("BackPACK (Linear layers only)", "backpack", backpack, 4096, complete=False),
    Method("opacus, on our model", "opacus", opacus, 4096, complete=False, usual=False),
]


def measured(method: Method, model: nn.Module, tokens: Tensor, position: Tensor) -> Result:
    n = method.contexts
    values = method.make(Usual(model) if method.usual else model)
    values(tokens[: min(n, BATCH)], position[: min(n, BATCH)])  # warm up
    start = time.process_time()
    found = np.array(values(tokens[:n], position[:n]))
    spent = time.process_time() - start
    spread = found.std(ddof=1) / abs(found.mean())
    seconds = spent / len(found) * (spread / 0.01) ** 2
    return Result(method.who, found.mean(), found.std(ddof=1) / len(found) ** 0.5, seconds, method.complete)


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SAMELOSS_REFERENCE_GRAMMAR")
    if path is None:
        print("give a grammar file, or set SAMELOSS_REFERENCE_GRAMMAR")
        return 2
    language = PCFG.from_file(path)
    config = TransformerConfig(vocab=len(language.vocab), length=language.max_length, width=128, heads=4, padded=True)
    state = pretrain(config, [language], TrainConfig(steps=600, batch=64, lr=1e-3, ema=0.99), [5])
    model = member(config, state.ema, 0)
    seen = contexts(language, 32 * BATCH, 6, config)
    print(f"width {config.width}, {config.layers} layers; {language}; KL {kl_to_truth(model, seen)}")
    results, missing = [], []
    print(f"\n{'':42}{'trace':>18}{'s to 1 %':>10}{'ours/peer':>11}")
    for method in METHODS:
        if not find_spec(method.package):
            missing.append(method.who)
            continue
        torch.manual_seed(0)
        result = measured(method, model, *seen.inputs)
        results.append(result)
        ratio = results[0].seconds / result.seconds
        print(
            f"{result.who:42}{result.mean:9.2f} ± {result.stderr:6.2f}{result.seconds:10.3g}{ratio:11.2g}", flush=True
        )
    for who in missing:
        print(f"not measured: {who} is not installed")
    mine, hutchinson = results[0], results[1]
    best = min(r.seconds for r in results[1:] if r.complete)
    goals = {
        "at most 1/3 of the best complete peer": mine.seconds / best <= 1 / 3,
        "at most 1/50 of plain Hutchinson": mine.seconds / hutchinson.seconds <= 1 / 50,
    }
    for goal, met in goals.items():
        print(f"{goal}: {'met' if met else 'MISSED'}")
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
