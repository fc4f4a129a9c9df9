"""LM text from a Hugging Face folder: a tiny OPT made here, saved as safetensors, and what can be wrong with it."""

import itertools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from sameloss.errors import UserError
from sameloss.languages.base import PAD, Language, Sentences
from sameloss.languages.lm_text import LMText

WORDS = ["<s>", "</s>", "<unk>", "the", "a", "cat", "dog", "runs", "sleeps", "and", "or", "big", "small"]


def _save_tokenizer(folder, words):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    from transformers import OPTConfig, OPTForCausalLM

    folder = tmp_path_factory.mktemp("opt")
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        word_embed_proj_dim=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=16,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        init_std=0.5,
    )
    OPTForCausalLM(config).save_pretrained(folder, safe_serialization=True)
    _save_tokenizer(folder, WORDS)
    return folder


@pytest.fixture
def copy(opt, tmp_path):
    return shutil.copytree(opt, tmp_path / "model")


def _full_log_probs(folder, prompt, ids, end, temperature, sentence, length):
    """log p(sentence) by one plain forward pass of the whole model, and the softmax over the tokens kept."""
    from transformers import OPTForCausalLM

    model = OPTForCausalLM.from_pretrained(folder).double().eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *(ids[w] for w in sentence)]])).logits[0, len(prompt) - 1 :]
    total = 0.0
    outcomes = [ids[w] for w in sentence] + ([end] if end is not None and len(sentence) < length else [])
    for t, outcome in enumerate(outcomes):
        kept = list(ids) if t == 0 or end is None else [*ids, end]
        total += (logits[t, kept] / temperature).log_softmax(0)[kept.index(outcome)].item()
    return total


@pytest.mark.parametrize("ends", [True, False])
def test_agrees_with_enumeration(opt, ends):
    prompts = {"animals": "the cat", "size": "big and small"}  # of unequal length
    lm = LMText.from_folder(opt, words=3, length=4, temperature=0.7, prompts=prompts, ends=ends)
    assert isinstance(lm, Language)
    every = [x for n in range(1 if ends else 4, 5) for x in itertools.product(range(3), repeat=n)]
    sentences = lm.encode([[lm.vocab[v] for v in x] for x in every])
    log_p = np.array(
        [
            np.logaddexp.reduce(
                [
                    np.log(0.5) + _full_log_probs(opt, prompt, lm.ids, 1 if ends else None, 0.7, x, 4)
                    for prompt in lm.prompts.values()
                ]
            )
            for x in every[::7]
        ]
    )
    np.testing.assert_allclose(lm.log_prob(sentences)[::7], log_p, rtol=1e-9)
    p = dict(zip(every, np.exp(lm.log_prob(sentences)), strict=True))
    assert sum(p.values()) == pytest.approx(1, abs=1e-12)
    found = lm.masked_conditionals(sentences)
    for row, x in enumerate(every):
        for t in range(4):
            wanted = np.array([p[(*x[:t], v, *x[t + 1 :])] for v in range(3)]) if t < len(x) else np.zeros(3)
            np.testing.assert_allclose(found[row, t], wanted / max(wanted.sum(), 1e-300), rtol=1e-9)
    ratio, stderr = lm.continuation_log_ratio(sentences[sentences.lengths > 2])
    assert (stderr == 0).all()
    going_on = {x: q for x, q in p.items() if len(x) > 2}
    total = sum(going_on.values())
    for x, r in zip(going_on, ratio, strict=True):
        first = sum(q for y, q in going_on.items() if y[:2] == x[:2]) / total
        second = sum(q for y, q in going_on.items() if y[2:] == x[2:]) / total
        assert r == pytest.approx(np.log(going_on[x] / total / first / second), abs=1e-9)


def test_samples_have_the_probabilities_that_log_prob_gives(opt):
    lm = LMText.from_folder(opt, words=2, length=3)
    sentences = lm.sample(20_000, seed=5)
    assert (sentences.tokens == lm.sample(20_000, seed=5).tokens).all()
    kinds, counts = np.unique(sentences.tokens, axis=0, return_counts=True)
    p = np.exp(lm.log_prob(Sentences(kinds, (kinds != PAD).sum(1))))
    assert p.sum() == pytest.approx(1, abs=0.01)
    assert (np.abs(counts / 20_000 - p) < 4 * np.sqrt(p / 20_000)).all()


def test_frequent_tokens_by_sampling_and_by_counts(opt):
    lm = LMText.from_folder(opt, words=4, length=6)
    assert lm.vocab == LMText.from_folder(opt, words=4, length=6).vocab
    assert not set(lm.vocab) & {"<s>", "</s>", "<unk>"}
    counts = np.zeros(len(WORDS))
    counts[[0, 4, 9, 3]] = 9, 5, 7, 5
    assert LMText.from_folder(opt, words=3, length=6, counts=counts).vocab == ("and", "the", "a")


def test_a_name_in_the_local_cache_is_found_and_another_is_not(opt, tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, local_files_only: str(opt))
    assert LMText.from_folder("someone/opt", words=3, length=4).max_length == 4
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="neither a folder nor in the local cache"):
        LMText.from_folder("nobody/nothing-at-all", words=3, length=4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_other_causal_architectures(tmp_path, kind):
    """Among them one that bends its logits behind the output layer and one with a sliding window."""
    from transformers import AutoConfig, AutoModelForCausalLM

    size = {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if kind == "gpt2":
        size |= {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    else:
        size |= {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        size |= {"num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **size)).save_pretrained(tmp_path)
    _save_tokenizer(tmp_path, WORDS)
    lm = LMText.from_folder(tmp_path, words=3, length=3)
    every = [x for n in (1, 2, 3) for x in itertools.product(range(3), repeat=n)]
    sentences = lm.encode([[lm.vocab[v] for v in x] for x in every])
    p = dict(zip(every, np.exp(lm.log_prob(sentences)), strict=True))
    assert sum(p.values()) == pytest.approx(1, abs=1e-12)
    found = lm.masked_conditionals(sentences)
    for row, x in enumerate(every):
        wanted = np.array([p[(v, *x[1:])] for v in range(3)])
        np.testing.assert_allclose(found[row, 0], wanted / wanted.sum(), rtol=1e-9)


def test_words_of_a_text_are_the_tokenizers(opt):
    from sameloss.languages import glue

    lm = LMText.from_folder(opt, words=10, length=4)
    assert lm.tokenize("the zebra runs") == ["the", "<unk>", "runs"]
    examples = glue.Examples("QNLI", [("the big dog runs", "a cat sleeps")], np.array([1]))
    sentences, labels, known = glue.encode(examples, lm)
    assert [lm.vocab[v] for v in sentences.tokens[0]] == ["the", "big", "a", "cat"]
    assert (labels.tolist(), known) == ([1], 1.0)


def test_float32_is_close(opt):
    lm, single = (LMText.from_folder(opt, words=5, length=4, dtype=d) for d in (torch.float64, torch.float32))
    sentences = lm.sample(20, 0)
    np.testing.assert_allclose(single.masked_conditionals(sentences), lm.masked_conditionals(sentences), atol=1e-5)


def _refused(folder, message, **options):
    with pytest.raises(UserError, match=message) as caught:
        LMText.from_folder(folder, **({"words": 3, "length": 4} | options))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value) or options


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no config.json found"),
        ("tokenizer.json", "no tokenizer found"),
        ("model.safetensors", "no weights found"),
    ],
)
def test_missing_files(copy, name, message):
    (copy / name).unlink()
    _refused(copy, message)


def test_pickled_weights_only(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    _refused(copy, r"pickled weights only \(pytorch_model.bin\)")


def test_corrupt_weights_and_config(copy):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:100])
    _refused(copy, "cannot load it")
    (copy / "model.safetensors").write_bytes(whole)
    (copy / "config.json").write_text("{")
    _refused(copy, "not a JSON file")
    (copy / "config.json").write_text("{}")
    _refused(copy, "names no model_type")


def test_missing_weights_and_shards(copy):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    lost = next(name for name in weights if name.endswith("fc1.weight"))
    del weights[lost]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    _refused(copy, "fc1.weight")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "part-1.safetensors"}}))
    _refused(copy, "part-1.safetensors is missing")


def test_other_kinds_of_models(tmp_path):
    from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

    bert = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    t5 = T5Config(vocab_size=len(WORDS), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    for name, message in (("bert", "not a causal"), ("t5", "cannot load it as a causal")):
        _save_tokenizer(tmp_path / name, WORDS)
        _refused(tmp_path / name, message)


def test_code_of_a_model_is_never_run(copy):
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "home_made",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text(f"open({str(copy / 'ran')!r}, 'w')")
    _refused(copy, "cannot load it")
    assert not (copy / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 11}, "11 words asked for, allowed is 2 to 10"),
        ({"words": 1}, "1 words asked for"),
        ({"length": 16}, "the model reads 16 tokens"),
        ({"length": 1}, "allowed is 2 or more"),
        ({"temperature": 0.0}, "allowed is a number above 0"),
        ({"counts": [1.0, 2.0]}, "one number a token"),
        ({"bank": 1}, "allowed is 2 or more"),
    ],
)
def test_wrong_options(opt, options, message):
    _refused(opt, message, **options)


def test_not_a_folder(tmp_path):
    _refused(tmp_path / "nothing", "not a folder")


def test_transformers_is_imported_only_when_a_model_is_loaded():
    code = (
        "import sys; import sameloss.languages.lm_text as m; m.LMText.embedded()\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
