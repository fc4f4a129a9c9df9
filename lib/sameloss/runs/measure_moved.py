"""What chapter 7 measures besides: probes on a shifted language, the trace that no rescaling explains, and how far a
representation has moved."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from sameloss.languages.base import Language, Sentences
from sameloss.languages.shift import shifted
from sameloss.learners.contexts import Contexts, conditionals_at, draw, model_tokens
from sameloss.learners.evaluate import kl_to_truth
from sameloss.learners.rescale import inner_pairs, rescale
from sameloss.learners.stack import Model, ModelConfig
from sameloss.measures import downstream_features
from sameloss.measures.downstream import linear_probe
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import Contexts as Inputs
from sameloss.measures.flatness import fisher_per_context
from sameloss.measures.robust import robust
from sameloss.measures.similarity import representation_change
from sameloss.runs.measure import Bench, Examples, labelled
from sameloss.runs.measure_rows import Row, row, scores
from sameloss.seeds import stream


def moved_rows(bench: Bench, model: Model, first: Model | None, config: ModelConfig) -> Iterator[Row]:
    """Rows of one checkpoint, as far as `bench.measure` asks for them; first: what its run began from, long ago."""
    measure, device = bench.measure, next(model.parameters()).device
    if measure.least_trace:
        tokens, position = bench.contexts[: measure.least_trace].inputs
        yield row("least_trace", least_trace(model, (tokens.to(device), position.to(device))))
    if measure.change and first is not None:
        tokens = bench.contexts.tokens[: measure.change]
        x, y = (downstream_features.features(m, tokens) for m in (first, model))
        yield row("change", representation_change(x, y))
    if measure.shift is None:
        return
    far = _shifted(bench)
    yield row("kl_shifted", kl_to_truth(model, far.contexts))

    def features(sentences: Sentences) -> Tensor:
        return downstream_features.features(model, torch.from_numpy(model_tokens(sentences, config)))

    yield from far.probe_rows("unmasked", features)


def shifted_baseline_rows(bench: Bench) -> Iterator[Row]:
    """Rows of the language itself under the shift: what is left to a probe on the words, and how far the shift goes.

    features "shifted-labels": how often the shifted language would give a sentence the label that the original gives.
    """
    if bench.measure.shift is None:
        return
    far, words = _shifted(bench), len(bench.language.vocab) + 1

    def one_hot(sentences: Sentences) -> Tensor:
        return downstream_features.one_hot_features(torch.from_numpy(sentences.tokens) + 1, words)

    yield from far.probe_rows("one-hot", one_hot)
    for task, test in far.test.items():
        same = far.language.labels(task, test.sentences) == test.labels
        yield row("accuracy", Estimate.of(same.astype(np.float64)), task, "shifted-labels")


def least_trace(model: Model, contexts: Inputs) -> Estimate:
    """The smallest Fisher trace (nats) to which the rescalings of `learners.rescale` can bring a model.

    A norm times a and its reader divided by a have shares S_n / a^2 and S_r a^2 of the trace, at least 2 sqrt(S_n S_r)
    together, whatever the other pairs do. Both shares follow from the traces at a = 2 and a = 1/2. What differs between
    two models in this trace, no rescaling accounts for.
    """
    whole = fisher_per_context(model, contexts)
    saved = np.zeros_like(whole)
    for pair in inner_pairs(name for name, _ in model.named_parameters()):
        up, down = (fisher_per_context(rescale(model, a, pair), contexts) - whole for a in (2.0, 0.5))
        norm, reader = (up + 4 * down) / 11.25, (4 * up + down) / 11.25
        # Of the means, since one factor serves all contexts; its derivative is each context's part in the saving.
        a2 = np.sqrt(max(norm.mean(), 0.0) / max(reader.mean(), 1e-30))
        saved += norm + reader - norm / max(a2, 1e-30) - reader * a2
    return robust(whole - saved)


@dataclass(frozen=True)
class Shifted:
    """The shifted language of a seed and what is tested on it, labelled by the original; made when first needed."""

    bench: Bench

    @cached_property
    def language(self) -> Language:
        assert self.bench.measure.shift is not None
        return shifted(self.bench.language, self.bench.measure.shift, self.bench.seed)

    @cached_property
    def test(self) -> dict[str, Examples]:
        original, seed = self.bench.language, int(stream(self.bench.seed, "probe/shifted").integers(2**62))
        sentences = self.language.sample(self.bench.measure.probe_test or 1, seed)
        return {
            task: Examples(sentences, original.labels(task, sentences), original.posteriors(task, sentences))
            for task in self.bench.tasks
        }

    @cached_property
    def contexts(self) -> Contexts:
        """Shifted sentences, their truth that of the original: what the model was trained to say in them."""
        sentences, position = draw(self.language, self.bench.measure.contexts, stream(self.bench.seed, "eval/shifted"))
        tokens = torch.from_numpy(model_tokens(sentences, self.bench.frame))
        at, rows = torch.from_numpy(position), torch.arange(len(position))
        target = tokens[rows, at].clone()
        tokens[rows, at] = self.bench.frame.mask
        truth = torch.from_numpy(conditionals_at(self.bench.language, sentences, position))
        return Contexts(tokens, at, target, truth)

    def probe_rows(self, name: str, features: Callable[[Sentences], Tensor]) -> Iterator[Row]:
        """Each task's probe, fitted on the original's sentences and scored on shifted ones."""
        made: dict[int, Tensor] = {}
        for task, test in self.test.items():
            train = self.bench.train[task]
            for sentences in (train.sentences, test.sentences):
                if id(sentences) not in made:
                    made[id(sentences)] = features(sentences).to(self.bench.device)
            y, rows, z, count = labelled(train, test)
            y, rows, z = (part.to(self.bench.device) for part in (y, rows, z))
            a, b = made[id(train.sentences)], made[id(test.sentences)][rows]
            yield from scores(None, linear_probe(a, y, b, z, count, self.bench.measure.l2), task, f"{name}-shifted")


@lru_cache(maxsize=1)
def _shifted(bench: Bench) -> Shifted:
    return Shifted(bench)  # all checkpoints of a seed are tested on the same sentences
