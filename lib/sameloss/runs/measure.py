"""What is measured on one checkpoint of one seed: loss, KL to the truth, trace, probes; and on the language itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sameloss.errors import UserError
from sameloss.languages.base import Language, Sentences
from sameloss.learners import evaluate
from sameloss.learners.contexts import Contexts, contexts, model_tokens, pool_contexts
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.stack import ModelConfig
from sameloss.learners.transformer import TransformerConfig
from sameloss.learners.widen import METHODS, widen
from sameloss.measures import downstream_features
from sameloss.measures.downstream import linear_probe, score
from sameloss.measures.downstream_recipes import fine_tune
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import fisher_trace
from sameloss.measures.flatness_hessian import gauss_newton_trace, hessian_trace
from sameloss.measures.sharpness import adaptive_sharpness
from sameloss.runs.measure_parts import loss_rows, part_rows
from sameloss.runs.measure_rows import Row, row, scores
from sameloss.runs.spec import Measure
from sameloss.seeds import stream

COLUMNS = ("run", "condition", "seed", "step", "weights", "quantity", "task", "features", "value", "stderr", "n")


@dataclass(frozen=True)
class Examples:
    """Labelled sentences of one task: labels (n,), posteriors (n, C)."""

    sentences: Sentences
    labels: Int[np.ndarray, " n"]
    posteriors: Float[np.ndarray, "n C"]


@dataclass(frozen=True)
class Bench:
    """Everything of one seed that all its checkpoints are measured on; made when first needed.

    pool: sentences that the run was trained on over and over; 0 where it never saw one twice.
    """

    language: Language
    redraws: int
    seed: int
    measure: Measure
    device: str = "cpu"
    pool: int = 0

    @property
    def frame(self) -> TransformerConfig:
        """The token ids: those of every model of this language, whatever its width."""
        vocab, length = len(self.language.vocab), self.language.max_length
        return TransformerConfig(vocab=vocab, length=length, width=1, heads=1, padded=True)

    @cached_property
    def contexts(self) -> Contexts:
        return contexts(self.language, self.measure.contexts, self.seed, self.frame)

    @cached_property
    def pool_contexts(self) -> Contexts:
        assert self.measure.pool_contexts is not None
        return pool_contexts(self.language, self.pool, self.measure.pool_contexts, self.seed, self.frame)

    @property
    def truth(self) -> Float[Tensor, "n V"]:
        assert self.contexts.conditional is not None
        return self.contexts.conditional.double()

    @cached_property
    def tasks(self) -> dict[str, int]:
        known = dict(self.language.tasks)
        wanted = tuple(dict.fromkeys((*(self.measure.tasks or known), *(self.measure.fine_tune or ()))))
        if unknown := [task for task in wanted if task not in known]:
            raise UserError(f"task {unknown[0]!r} is none of this language's; allowed: {', '.join(known)}")
        return {task: known[task] for task in wanted} if self.measure.probe_train else {}

    @cached_property
    def train(self) -> dict[str, Examples]:
        return self._examples("train", self.measure.probe_train)

    @cached_property
    def test(self) -> dict[str, Examples]:
        return self._examples("test", self.measure.probe_test)

    def _examples(self, part: str, n: int) -> dict[str, Examples]:
        if not self.tasks:
            return {}
        seed = int(stream(self.seed, f"probe/{part}").integers(2**62))
        own = getattr(self.language, "task_examples", None)  # a language whose tasks have sentences of their own
        if own is not None:
            return {task: Examples(*own(task, n, seed)) for task in self.tasks}
        sentences = self.language.sample(n, seed)  # one sample for all tasks
        return {
            task: Examples(sentences, self.language.labels(task, sentences), self.language.posteriors(task, sentences))
            for task in self.tasks
        }


def checkpoint_rows(bench: Bench, model: nn.Module, config: ModelConfig) -> Iterator[Row]:
    """Rows of one model (evaluation mode, on its device): loss and KL, trace, and each task's probes."""
    measure, seen, device = bench.measure, bench.contexts, next(model.parameters()).device
    yield row("kl", evaluate.kl_to_truth(model, seen))
    yield row("cross_entropy", evaluate.cross_entropy(model, seen))
    yield row("expected_cross_entropy", evaluate.expected_cross_entropy(model, seen))
    if measure.rare is not None:
        yield from part_rows(model, bench.language, seen, bench.frame.pad, measure.rare)
    if measure.pool_contexts:
        yield from loss_rows(model, bench.pool_contexts, {"pool": slice(None)})
    if measure.trace_contexts:
        tokens, position = seen[: measure.trace_contexts].inputs
        trace = fisher_trace(model, (tokens.to(device), position.to(device)))
        yield row("trace", trace)
        yield from embedded_rows(bench, model, config, trace)
    yield from curvature_rows(bench, model)

    def unmasked(sentences: Sentences) -> Tensor:
        return downstream_features.features(model, _tokens(sentences, config))

    def masked(sentences: Sentences) -> Tensor:
        tokens = _tokens(sentences, config)
        inside = (tokens != config.pad)[..., None]  # behind the end there is nothing to mask
        return downstream_features.masked_features(model, tokens, config.mask) * inside

    yield from probe_rows(bench, "unmasked", unmasked)
    if measure.masked:
        yield from probe_rows(bench, "masked", masked)


def embedded_rows(bench: Bench, model: nn.Module, config: ModelConfig, trace: Estimate) -> Iterator[Row]:
    """The trace again in the parametrisation of a larger model, by both methods; its own where it is that large."""
    wanted = bench.measure.curvature
    if wanted is None or wanted.embed is None:
        return
    layers = None if isinstance(config, LSTMConfig) else wanted.embed_layers
    grows = wanted.embed != config.width or layers not in (None, getattr(config, "layers", None))
    tokens, position = bench.contexts[: bench.measure.trace_contexts].inputs
    for method in METHODS:
        if grows:
            larger = widen(model, wanted.embed, layers, method)  # type: ignore[arg-type]  # nn.Module: one of ours
            trace = fisher_trace(larger, (tokens.to(bench.device), position.to(bench.device)))
        yield row(f"trace_{method}", trace)


def curvature_rows(bench: Bench, model: nn.Module) -> Iterator[Row]:
    """Traces of the Hessian (of the loss against the true conditional) and of Gauss-Newton; adaptive sharpness."""
    wanted = bench.measure.curvature
    if wanted is None:
        return
    seen = bench.contexts[: wanted.contexts]
    truth = bench.truth[: wanted.contexts].to(bench.device)
    if wanted.probes:  # the same vectors for both: their difference is less uncertain than either
        yield row("hessian_trace", hessian_trace(model, seen.inputs, truth, wanted.probes, bench.seed))
        yield row("gauss_newton_trace", gauss_newton_trace(model, seen.inputs, wanted.probes, bench.seed))
    if wanted.directions:
        found = adaptive_sharpness(model, seen.inputs, truth, wanted.rho, wanted.directions, bench.seed)
        yield row("sharpness", found)


def fine_tuned_rows(bench: Bench, model: nn.Module, config: ModelConfig) -> Iterator[Row]:
    """Rows of copies of one model, fine-tuned on the tasks that `measure.fine_tune` names; features "fine-tuned"."""
    for task in bench.measure.fine_tune or ():
        train, test = bench.train[task], bench.test[task]
        y, rows, z, classes = labelled(train, test)
        a, b = _tokens(train.sentences, config), _tokens(test.sentences, config)[rows]
        result = fine_tune(model, config.cls, a, y, b, z, classes, bench.seed)
        yield from scores(bench.measure.thresholds, result, task, "fine-tuned")


def baseline_rows(bench: Bench) -> Iterator[Row]:
    """Rows of a language without any model: floor, redraws, and each task's probes on input and true conditionals."""
    p, language = bench.truth.numpy(), bench.language
    yield row("floor", Estimate.of(-(p * np.log(np.maximum(p, 1e-300))).sum(1)))
    yield row("redraws", Estimate(bench.redraws, 0.0, 1))

    def one_hot(sentences: Sentences) -> Tensor:
        return downstream_features.one_hot_features(torch.from_numpy(sentences.tokens) + 1, len(language.vocab) + 1)

    tables: dict[int, Tensor] = {}

    def lookup(sentences: Sentences) -> Tensor:
        if id(sentences) not in tables:
            blocks = language.iter_masked_conditionals(sentences)
            tables[id(sentences)] = torch.cat([downstream_features.lookup_features(block) for block in blocks])
        return tables[id(sentences)]

    def log_lookup(sentences: Sentences) -> Tensor:
        return downstream_features.lookup_features(lookup(sentences).numpy(), log=True)

    yield from probe_rows(bench, "one-hot", one_hot)
    yield from probe_rows(bench, "lookup", lookup)
    yield from probe_rows(bench, "log-lookup", log_lookup)
    for task, test in bench.test.items():
        posteriors = torch.from_numpy(test.posteriors).clamp_min(1e-300)
        yield from scores(
            bench.measure.thresholds, score(posteriors.log(), torch.from_numpy(test.labels)), task, "bayes"
        )


def probe_rows(bench: Bench, name: str, features: Callable[[Sentences], Tensor]) -> Iterator[Row]:
    """Probe every task in the full dimension, and in the common projection as `name`-DIMENSION."""
    measure, made = bench.measure, {}

    def of(sentences: Sentences) -> Tensor:
        if id(sentences) not in made:
            made[id(sentences)] = features(sentences).to(bench.device)
        return made[id(sentences)]

    for task in bench.tasks:
        train, test = bench.train[task], bench.test[task]
        y, rows, z, classes = labelled(train, test)
        y, rows, z = (part.to(bench.device) for part in (y, rows, z))
        a, b = of(train.sentences), of(test.sentences)[rows]
        yield from scores(measure.thresholds, linear_probe(a, y, b, z, classes, measure.l2), task, name)
        if measure.projection and measure.projection <= a[0].numel():
            a, b = (downstream_features.project(x, measure.projection, bench.seed) for x in (a, b))
            low = linear_probe(a, y, b, z, classes, measure.l2)
            yield from scores(measure.thresholds, low, task, f"{name}-{measure.projection}")


def labelled(train: Examples, test: Examples) -> tuple[Tensor, Tensor, Tensor, int]:
    """Training labels, the test examples that count, their labels, and the number of classes.

    A class too rare to occur among the training examples cannot be learnt; n says how many test examples count.
    """
    seen, labels = np.unique(train.labels, return_inverse=True)
    rows = np.flatnonzero(np.isin(test.labels, seen))
    found = np.searchsorted(seen, test.labels[rows])
    return torch.from_numpy(labels), torch.from_numpy(rows), torch.from_numpy(found), len(seen)


def _tokens(sentences: Sentences, config: ModelConfig) -> Int[Tensor, "n T"]:
    return torch.from_numpy(model_tokens(sentences, config))
