"""The paper's downstream recipes: an AdamW probe on frozen features and fine-tuning of a classification token."""

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sameloss.measures.downstream import ProbeResult, checked, score
from sameloss.seeds import torch_stream


def adamw_probe(
    features_train: Float[Tensor, "n ..."],
    labels_train: Int[Tensor, " n"],
    features_test: Float[Tensor, "m ..."],
    labels_test: Int[Tensor, " m"],
    classes: int,
    seed: int,
    epochs: int = 100,
    lr: float = 1e-3,
    batch: int = 256,
) -> ProbeResult:
    """The linear probe as the paper trains it: AdamW 1e-3, 100 epochs (Liu et al. 2022, A.3); `seed` orders batches.

    UserError as for `linear_probe`.
    """
    train, test = checked(features_train, labels_train, features_test, labels_test, classes)
    weight = torch.zeros(classes, train.shape[1], device=train.device, requires_grad=True)
    bias = torch.zeros(classes, device=train.device, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=lr, fused=True)
    order = torch_stream(seed, "probe")
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=order).to(train.device).split(batch):
            loss = F.cross_entropy(F.linear(train[rows], weight, bias), labels_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return score(F.linear(test, weight, bias).log_softmax(1), labels_test)


def fine_tune(
    model: nn.Module,
    cls: int,
    tokens_train: Int[Tensor, "n T"],
    labels_train: Int[Tensor, " n"],
    tokens_test: Int[Tensor, "m T"],
    labels_test: Int[Tensor, " m"],
    classes: int,
    seed: int,
    epochs: int = 10,
    lr: float = 1e-4,
    warmup: int = 200,
    batch: int = 64,
) -> ProbeResult:
    """Train a copy of `model` and a linear head on the vector of a prepended token `cls`; the last epoch counts.

    AdamW 1e-4, 200 warm-up steps, 10 epochs (Liu et al. 2022, A.3). The model itself is left as it was.
    UserError as for `linear_probe`.
    """
    checked(tokens_train, labels_train, tokens_test, labels_test, classes)
    model = copy.deepcopy(model).train()
    device = next(model.parameters()).device
    first = torch.full((1, 1), cls, device=device)

    def vector(tokens: Int[Tensor, "b T"]) -> Float[Tensor, "b d"]:
        prompt = torch.cat([first.expand(len(tokens), 1), tokens.to(device)], dim=1)
        return model(prompt, torch.zeros(len(tokens), dtype=torch.long, device=device), features=True)[:, 0]

    with torch.no_grad():
        width = vector(tokens_train[:1]).shape[1]
    weight = torch.zeros(classes, width, device=device, requires_grad=True)
    bias = torch.zeros(classes, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW([*model.parameters(), weight, bias], lr=lr, fused=True)
    order, step = torch_stream(seed, "probe/fine-tuning"), 0
    for _ in range(epochs):
        for rows in torch.randperm(len(tokens_train), generator=order).split(batch):
            step += 1
            optimizer.param_groups[0]["lr"] = lr * min(1.0, step / max(1, warmup))
            loss = F.cross_entropy(F.linear(vector(tokens_train[rows]), weight, bias), labels_train[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        logits = torch.cat([F.linear(vector(block), weight, bias) for block in tokens_test.split(2048)])
    return score(logits.cpu().log_softmax(1), labels_test)
