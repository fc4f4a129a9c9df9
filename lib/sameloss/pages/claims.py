"""The claims of the paper that the book re-derives (C), those it adds (N), and the rules that compute verdicts."""

import math
from dataclasses import dataclass

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate

EMPIRICAL = ("reproduced", "direction only", "contradicted", "not reproduced", "not comparable", "not run")
THEORETICAL = ("verified", "verified with a restriction", "false as stated", "not run")
MIN_SEEDS = 8


@dataclass(frozen=True)
class Claim:
    """One row of the ledger: what the paper says, where, and with which number."""

    id: str
    place: str  # in Liu et al. 2022, or "beyond the paper"
    statement: str  # in our words
    number: str  # the paper's
    kind: str = "empirical"  # or "theory"


CLAIMS = {
    claim.id: claim
    for claim in (
        Claim(
            "C1",
            "Fig. 1",
            "Once the pre-training loss has stopped falling, more training still raises downstream accuracy.",
            "shown as curves for a 41 M model on PCFG text and a 235 M model on OPT text",
        ),
        Claim(
            "C2",
            "Fig. 2, §A.5",
            "Of two models with equal, converged pre-training loss, the larger one transfers better.",
            "probe accuracy +6.9 points (PCFG, task B), +4.5 (HMM, task-10), +2.0 (OPT text, QNLI)",
        ),
        Claim(
            "C3",
            "Table 1",
            "At nearly equal loss the training algorithm decides the transfer: adversarially trained features "
            "and the lookup table of true conditionals both do worse than AdamW's.",
            "235 M, PCFG: AdamW loss 3.204, A 89.9 ± 0.3, B 49.2 ± 0.8; adversarial 3.206, A 83.1 ± 0.6, "
            "B 42.3 ± 1.5; lookup table 3.196, A 71.2, B 39.7",
        ),
        Claim(
            "C4",
            "§3.3",
            "An adversarially pre-trained large model transfers worse than an ordinarily trained small one.",
            "235 M adversarial below 9 M AdamW on PCFG task B",
        ),
        Claim(
            "C5",
            "§3.3",
            "A linear probe on the true conditional probabilities does worse than one on a transformer's features.",
            "PCFG task A 71.2 against 89.9, task B 39.7 against 49.2",
        ),
        Claim(
            "C6",
            "§A.6, Fig. 10",
            "The comparisons at equal loss stand when closeness to the truth is measured by log KL.",
            "shown as curves",
        ),
        Claim(
            "C7",
            "Lemma 4.2",
            "Where the model equals the true conditional, the covariance of the gradient equals the Hessian.",
            "an identity",
            "theory",
        ),
        Claim(
            "C8",
            "Theorem 4.3",
            "As the step size goes to 0, SGD on the minimiser manifold follows the gradient flow of the trace of "
            "the Hessian, in distribution and on the time scale K/η².",
            "dθ = -¼ ∇Γ Tr ∇²L dt",
            "theory",
        ),
        Claim("C9", "§4", "With batches of B examples the speed of that flow is divided by B.", "1/(4B)", "theory"),
        Claim(
            "C10",
            "Fig. 3, Fig. 11",
            "Along the checkpoints after convergence the trace of the Hessian falls while accuracy rises.",
            "+1.6 points (PCFG, task C, 235 M), +4.0 (HMM, task-10, 67 M)",
        ),
        Claim(
            "C11",
            "Table 2",
            "The adversarially trained model is both sharper and worse downstream at equal loss.",
            "PCFG task C, 235 M: AdamW 55.7 ± 0.6 with trace 8.01 ± 0.73; adversarial 50.2 ± 1.0 with 19.34 ± 0.92",
        ),
        Claim(
            "C12",
            "Fig. 5",
            "Among converged models, larger ones have a smaller trace, and transfer better.",
            "PCFG, above 9 M: trace 19.8 to 12.6 while task B rises from 40.4 % to 50.5 %",
        ),
        Claim(
            "C13",
            "§B.1",
            "The trace of the Hessian at saturation is estimated without bias by squared gradient norms of "
            "tokens drawn from the model.",
            "an identity",
            "theory",
        ),
        Claim(
            "C14",
            "§B.4",
            "A small transformer can be embedded in a wider and deeper one that computes exactly the same function.",
            "an identity",
            "theory",
        ),
        Claim(
            "C15",
            "§B.4.3",
            "The larger family reaches flatter minima than the smaller one.",
            "no number of its own (see Fig. 5)",
        ),
        Claim(
            "C16",
            "Theorem 6.1, §D.1",
            "On the Dyck language the flattest solution without pre-training loss, with the least-norm head on n "
            "labelled examples, makes no downstream error.",
            "with probability at least 1 - 2⁻ⁿ (m ≥ 2, T ≥ 6)",
            "theory",
        ),
        Claim(
            "C17",
            "§6, §D.2",
            "Wide random features also reach zero pre-training loss, but at a larger trace and with poor transfer.",
            "a statement about sufficient width",
            "theory",
        ),
        Claim(
            "C18",
            "§D.1",
            "The least possible trace is met only without cancellation between neurons and with attention outputs "
            "along one direction.",
            "an equality condition",
            "theory",
        ),
        Claim(
            "N1",
            "beyond the paper",
            "Far from the floor the loss tells the score: a lower loss has a better score, and at equal loss models of "
            "all sizes and both architectures are alike.",
            "none: what Du et al. (2024) read off their curves, and what their reviewers asked to test",
        ),
        Claim(
            "N2",
            "beyond the paper",
            "Near the floor the loss stops telling: the lower loss is less often the better model, and models of equal "
            "loss are apart.",
            "none: the account of the disagreement with Du et al. (2024)",
        ),
        Claim(
            "N3",
            "beyond the paper",
            "Accuracy, the Brier score and the probability of the right answer put models into one order; a threshold "
            "makes the rise along the loss steeper.",
            "none: a question of the reviewers of Du et al. (2024)",
        ),
        Claim(
            "N4",
            "beyond the paper",
            "Label noise alone flattens what SGD finds, by more than rescaling explains, and at equal KL the flatter "
            "model transfers better.",
            "no number: the paper compares checkpoints of one run, without a control",
        ),
        Claim(
            "N5",
            "beyond the paper",
            "At equal KL transfer follows the trace from intervention to intervention: what lowers the trace raises "
            "accuracy in proportion, what raises the trace lowers accuracy.",
            "no number: what the paper's account predicts",
        ),
        Claim(
            "N6",
            "beyond the paper",
            "The flatter model transfers better out of distribution too: the same probes, tested on sentences of a "
            "shifted grammar.",
            "none: the paper leaves this open",
        ),
        Claim(
            "N7",
            "beyond the paper",
            "Two checkpoints whose losses are matched can be told apart by trace and probe: the one trained with the "
            "larger learning rate is the flatter one, and transfers better.",
            "no number: a question of its readers",
        ),
    )
}


def claim(key: str) -> Claim:
    """The claim with this id; UserError naming those that exist."""
    if key not in CLAIMS:
        raise UserError(f"claim {key!r} is unknown; allowed: {', '.join(CLAIMS)}")
    return CLAIMS[key]


def verdict(
    difference: Estimate | None,
    *,
    profile: str,
    direction: int = 1,
    min_seeds: int = MIN_SEEDS,
    comparable: bool = True,
) -> str:
    """Verdict on an empirical claim from the paired difference over seeds.

    direction: +1 where the paper says the difference is positive, -1 where negative. min_seeds: 8, but 5 for text of
    language models and for chapter 6. comparable: False when no equal loss was reached.
    """
    if direction not in (1, -1):
        raise ValueError(f"direction is +1 or -1, found {direction!r}")
    if profile == "smoke" or difference is None:
        return "not run"
    # Before the number of seeds: a seed without equal loss is missing from n although it was run.
    if not comparable:
        return "not comparable"
    if difference.n < min_seeds:
        return "not run"
    if not (math.isfinite(difference.value) and math.isfinite(difference.stderr)):
        return "not comparable"
    low, high = sorted(direction * end for end in difference.interval())
    if low > 0:
        return "reproduced"
    if high < 0:
        return "contradicted"
    return "direction only" if direction * difference.value > 0 else "not reproduced"


def theory_verdict(holds: bool, restriction: str = "") -> str:
    """Verdict on a statement of theory: whether its check passed, and under which restriction that the paper omits."""
    if not holds:
        return "false as stated"
    return "verified with a restriction" if restriction else "verified"
