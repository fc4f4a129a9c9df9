"""`sameloss compare` from the command line, end to end: `python tests/benchmarks/compare.py`.

Two BERTs of 4 layers and width 256 over 1 000 words, trained for 400 and 800 steps on sentences of a
random hidden Markov chain. 1 000 sentences of 20 words with labels. Wall-clock time on two threads, and the relative
standard error of both traces. Exits with 1 when a goal is missed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sameloss.languages.hmm import HMM
from sameloss.learners import small_bert

SECONDS, PRECISION = 120.0, 0.05
VOCAB, LENGTH, LINES = 1000, 20, 1000


def write(folder: Path) -> list[Path]:
    """Two checkpoints of one training run, a text and its labels (the state the chain begins in)."""
    chain = HMM.random(states=20, vocab=VOCAB, length=LENGTH, emission_concentration=0.01, seed=1)
    names = [f"w{i}" for i in range(VOCAB)]
    found = small_bert.train(folder, names, chain.sample(20000, 2).tokens, 256, [400, 800], 32, 1e-3, 0, layers=4)
    held = chain.sample(LINES, 3)
    (folder / "text.txt").write_text("".join(" ".join(names[w] for w in row) + "\n" for row in held.tokens))
    labels = np.asarray(chain.labels(next(iter(chain.tasks)), held)) % 2
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        first, second = write(folder)
        files = ["--text", str(folder / "text.txt"), "--labels", str(folder / "labels.txt")]
        command = [sys.executable, "-m", "sameloss.cli", "compare", str(first), str(second), *files, "--json"]
        start = time.monotonic()
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "2"}
        )
        seconds = time.monotonic() - start
    found = json.loads(said.stdout)
    traces = [(c["trace"]["value"], c["trace"]["stderr"]) for c in (found["a"], found["b"])]
    error = max(stderr / value for value, stderr in traces)
    print(f"{seconds:.0f} s (goal {SECONDS:.0f}); traces {', '.join(f'{v:.4g} ± {e:.2g}' for v, e in traces)}")
    print(f"largest relative standard error {error:.3f} (goal {PRECISION})")
    return int(seconds > SECONDS or error > PRECISION)


if __name__ == "__main__":
    sys.exit(main())
