"""Masked-LM training side by side with what one would take instead: `python tests/benchmarks/training.py`.

Sentences per second of CPU time on one thread: our pre-training loop with everything in it (data, optimizer, EMA)
against BertForMaskedLM of transformers and torch's nn.TransformerEncoder, which get their batches for free (ratios are
those of our loop compiled, as a long run of this size would be; compiling takes half a minute); then the stack of
seeds of the laptop profile, not compiled, and the share of its time that data generation takes. Exits with 1 when a
goal is missed.
"""
# ruff: noqa: E402  the number of threads is read when numpy and torch are imported

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from sameloss.languages.base import Language
from sameloss.languages.hmm import HMM
from sameloss.languages.pcfg import PCFG
from sameloss.learners.contexts import Contexts, TrainingData
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.pretrain import CHUNK, TrainConfig, pretrain
from sameloss.learners.stack import ModelConfig
from sameloss.learners.transformer import TransformerConfig

torch.set_num_threads(1)
BATCH, VOCAB, LENGTH, WIDTH, HEADS, LAYERS = 256, 200, 16, 64, 4, 2


def best(step: Callable[[], object], steps: int) -> float:
    """CPU seconds of a step: the best of `steps`, after two to warm up."""
    times = []
    for i in range(steps + 2):
        start = time.process_time()
        step()
        if i >= 2:
            times.append(time.process_time() - start)
    return min(times)


def ours(config: ModelConfig, languages: Sequence[Language], batch: int, steps: int = 20, **options: bool) -> float:
    """Sentences per second, summed over seeds, from the best five consecutive steps of the loop as it is used.

    Drawing a chunk of data happens once in `CHUNK` sentences; its time is added to every step in proportion.
    """
    clock: list[float] = []
    seeds = range(len(languages))
    train = TrainConfig(steps=steps, batch=batch, **options)
    pretrain(config, languages, train, seeds, progress=lambda done, total: clock.append(time.process_time()))
    step = min(b - a for a, b in zip(clock[2:], clock[7:], strict=False)) / 5
    return len(languages) * batch / (step + data_seconds(config, languages) * batch / CHUNK)


def data_seconds(config: ModelConfig, languages: Sequence[Language]) -> float:
    """CPU seconds to draw one chunk for every seed of a stack."""
    sources = [TrainingData(language, 0, config, "base", False, 0) for language in languages]
    return best(lambda: [source.chunk(0, CHUNK) for source in sources], 3)


def peer(model: nn.Module, loss: Callable[[Contexts], Tensor], batch: Contexts, steps: int = 12) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()

    return BATCH / best(step, steps)


def hugging_face(batch: Contexts) -> float:
    config = BertConfig(
        vocab_size=VOCAB + 3,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    labels = torch.full_like(batch.tokens, -100)
    labels[torch.arange(BATCH), batch.position] = batch.target
    return peer(model, lambda b: model(input_ids=b.tokens, labels=labels).loss, batch)


class Encoder(nn.Module):
    """What a textbook would write with torch's own encoder, the head at the masked position already."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB + 3, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.encoder(self.token(tokens) + self.position.weight)
        return self.head(x[torch.arange(len(x)), position])


def torch_encoder(batch: Contexts) -> float:
    model = Encoder()
    return peer(model, lambda b: F.cross_entropy(model(b.tokens, b.position), b.target), batch)


def main() -> int:
    missed = []

    def line(what: str, who: str, rate: float, ratio: float | None = None, goal: float | None = None) -> None:
        met = "" if goal is None else ("met" if (rate if ratio is None else ratio) >= goal else "MISSED")
        missed.extend([what] if met == "MISSED" else [])
        print(f"{what:34}{who:34}{rate:12,.0f}{'' if ratio is None else f'{ratio:.2f}':>11}{met:>8}", flush=True)

    print(f"{'':34}{'':34}{'sentences/s':>12}{'ours/peer':>11}{'goal':>8}")
    what = f"d {WIDTH}, {LAYERS} layers, length {LENGTH}"
    chain = HMM.random(states=20, vocab=VOCAB, length=LENGTH, seed=5)
    config = TransformerConfig(vocab=VOCAB, length=LENGTH, width=WIDTH, layers=LAYERS, heads=HEADS)
    batch = TrainingData(chain, 0, config, "base", False, 0).chunk(0, BATCH)
    mine, compiled = ours(config, [chain], BATCH), ours(config, [chain], BATCH, compile=True)
    line(what, "ours", mine)
    line(what, "ours, compiled", compiled)
    line(what, "ours, compiled, bf16", ours(config, [chain], BATCH, compile=True, bf16=True))
    bert, encoder = hugging_face(batch), torch_encoder(batch)
    line(what, "transformers BertForMaskedLM", bert, compiled / bert, 1.8)
    line(what, "torch nn.TransformerEncoder", encoder, compiled / encoder)
    grammars = [PCFG.tree_grammar(seed) for seed in range(8)]
    for width, goal in ((16, None), (32, 15000.0)):
        small = TransformerConfig(vocab=16, length=8, width=width)
        line(f"d {width}, length 8, 8 seeds stacked", "ours", ours(small, grammars, BATCH), goal=goal)
    rate = ours(small, grammars, BATCH)
    share = data_seconds(small, grammars) / (8 * CHUNK) * rate
    met = "met" if share < 0.1 else "MISSED"
    print(f"{'data generation, d 32':34}{'share of the time':34}{share:12.1%}{'':11}{met:>8}")
    chains = [HMM.twelve_state_chain(seed) for seed in range(8)]
    lstm = LSTMConfig(vocab=24, length=8, width=16)
    line("LSTM d 16, length 8, 8 seeds", "ours", ours(lstm, chains, 128))
    return 1 if missed or share >= 0.1 else 0


if __name__ == "__main__":
    sys.exit(main())
