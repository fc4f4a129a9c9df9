"""The teachers: their architecture against transformers, their training script, their files."""

import json
import platform
import shutil

import numpy as np
import pytest
import torch

from sameloss.errors import UserError
from sameloss.languages import docstrings, teacher_files, train_teacher
from sameloss.languages.teacher import OPTShape, Teacher, hidden_states, initial_weights, shapes
from sameloss.seeds import torch_stream


@pytest.fixture(scope="module")
def corpus():
    return docstrings.read()


@pytest.fixture(scope="module")
def text(corpus):
    return train_teacher.number(corpus)


def _transformers_model(shape, weights):
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        word_embed_proj_dim=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        ffn_dim=shape.hidden,
        max_position_embeddings=shape.positions,
    )
    model = OPTForCausalLM(config).double().eval()
    loaded = model.load_state_dict({name: value.double() for name, value in weights.items()}, strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"lm_head.weight"}  # tied to the embeddings
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", ["small", "large"])
def test_transformers_computes_the_same_logits(name):
    shipped = teacher_files.read(name)
    model = _transformers_model(shipped.shape, shipped.weights)
    own = Teacher(shipped.weights, shipped.shape.heads, range(shipped.shape.vocab))
    tokens = torch.randint(shipped.shape.vocab, (5, shipped.shape.positions), generator=torch_stream(0, "probe"))
    with torch.no_grad():
        wanted = model(tokens).logits
    found, cache = own(tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    # ... and read piece by piece, with a past that several continuations share.
    _, begun = own(tokens[:1, :3])
    many = torch.cat([tokens[:1, :3].expand(5, -1), tokens[:, 3:]], 1)
    with torch.no_grad():
        wanted = model(many).logits
    found, _ = own(many[:, 3:], begun)
    torch.testing.assert_close(found, wanted[:, 3:], rtol=1e-9, atol=1e-9)
    _, middle = own(many[:, 3:5], begun)
    found, _ = own(many[:, 5:], middle)
    torch.testing.assert_close(found, wanted[:, 5:], rtol=1e-9, atol=1e-9)
    assert cache[0][0].shape[:3] == (5, shipped.shape.heads, shipped.shape.positions)


def test_the_shipped_teachers_are_what_the_protocol_names():
    small, large = teacher_files.read("small"), teacher_files.read("large")
    assert (small.shape.width, small.shape.layers) == (16, 1)
    assert (large.shape.width, large.shape.layers) == (64, 2)
    assert len(small.words) == 800
    assert small.topics == list(docstrings.TOPICS)
    assert len(small.topics) == 6
    assert all(value.dtype == torch.float16 for value in (*small.weights.values(), *large.weights.values()))
    assert sum(path.stat().st_size for path in teacher_files.FOLDER.iterdir()) <= 900_000
    for shipped in (small, large):
        # Far below the entropy of the words alone, and not by much memorised: the held-out text agrees.
        counts = shipped.record["counts"]
        assert counts == sorted(counts, reverse=True)
        shares = np.array([*counts, shipped.record["corpus"]["words"] - sum(counts)])
        unigram = -(shares / shares.sum() * np.log(shares / shares.sum())).sum()
        assert shipped.record["held_out_loss"] < unigram - 0.4
        assert shipped.record["losses"][-1] < shipped.record["losses"][0]


def test_fifty_steps_of_the_script(text, corpus):
    recipe = train_teacher.RECIPES["small"]
    weights, losses = train_teacher.train(text, recipe, steps=50)
    again, repeated = train_teacher.train(text, recipe, steps=50)
    assert losses == repeated
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert losses[0] == pytest.approx(np.log(train_teacher.WORDS + 1), abs=0.05)
    assert np.mean(losses[-5:]) < losses[0] - 0.4
    shipped = teacher_files.read("small")
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in shipped.weights.items()
    }
    if shipped.record["corpus"]["sha256"] == corpus.digest:  # else another patch version of Python
        assert losses[49] == pytest.approx(shipped.record["losses"][0], rel=1e-3)


def test_another_seed_trains_another_teacher(text):
    recipe = train_teacher.RECIPES["small"]
    one, _ = train_teacher.train(text, recipe, steps=2)
    other, _ = train_teacher.train(text, train_teacher.Recipe(**(vars(recipe) | {"seed": 1})), steps=2)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_corpus(corpus):
    assert tuple(corpus.topics) == docstrings.TOPICS
    sizes = {topic: sum(map(len, sentences)) for topic, sentences in corpus.topics.items()}
    assert all(15_000 < size < 80_000 for size in sizes.values())
    assert [word for word, _ in corpus.counts().most_common(3)] == ["the", "a", "to"]
    if platform.python_version_tuple()[:2] == ("3", "11"):
        assert sum(sizes.values()) == pytest.approx(267_000, rel=0.02)


def test_paragraphs_count_once_and_tests_not_at_all(tmp_path):
    (tmp_path / "tkinter").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "tkinter" / "a.py").write_text(
        '"""Open it. Don\'t close 2 files.\n\n    Same\n    words."""\ndef f():\n    "Same words."\n'
    )
    (tmp_path / "os.py").write_text('class A:\n    """Same  words.\n\n    Another one: of x_1."""\n')
    (tmp_path / "broken.py").write_text("print 'two'")
    (tmp_path / "test" / "b.py").write_text('"""Not this."""')
    corpus = docstrings.read(tmp_path)
    found = {topic: sentences for topic, sentences in corpus.topics.items() if sentences}
    assert found == {
        "system": [["same", "words"], ["another", "one"], ["of", "x"]],
        "windows": [["open", "it"], ["don't", "close", "files"]],
    }
    (tmp_path / "os.py").write_text('"""Other words."""')
    assert docstrings.read(tmp_path).digest != corpus.digest
    with pytest.raises(UserError, match="no docstrings found"):
        docstrings.read(tmp_path / "test" / "nowhere")


def test_windows_keep_to_one_topic_and_to_one_side_of_the_split(text):
    for held_out in (False, True):
        anywhere, starts = train_teacher.windows(text, 8, held_out)
        assert set(starts) <= set(anywhere)
        assert set(starts) <= set(text.starts)
        at = np.concatenate([anywhere[::97], starts[::7]])
        inside = at[:, None] + np.arange(8)
        assert (text.topic[inside] == text.topic[at, None]).all()
        assert (text.held_out[inside] == held_out).all()
        batch = train_teacher.batch_at(text, at, 8)
        assert batch.shape == (len(at), 9)
        assert (batch[:, 0] > train_teacher.WORDS).all()
        assert (batch[:, 1:] <= train_teacher.WORDS).all()
    assert 0.03 < text.held_out.mean() < 0.07


def test_command_line(text, corpus, tmp_path, monkeypatch, capsys):
    tiny = train_teacher.Recipe(width=8, layers=1, heads=2, window=8, batch=16, steps=60)
    monkeypatch.setattr(train_teacher, "RECIPES", {"small": tiny})
    monkeypatch.setattr(docstrings, "read", lambda: corpus)
    train_teacher.main(["--out", str(tmp_path / "new")])
    assert "held out" in capsys.readouterr().out
    shipped = teacher_files.read("small", tmp_path / "new")
    assert shipped.record["corpus"]["sha256"] == corpus.digest
    assert platform.python_version() in shipped.record["corpus"]["source"]
    assert len(shipped.record["losses"]) == 1
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "SHA256SUMS",
        "small.json",
        "small.safetensors",
    ]
    with pytest.raises(SystemExit):
        train_teacher.main(["huge"])
    assert "allowed are small" in capsys.readouterr().err


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(teacher_files.FOLDER, tmp_path / "teacher")


@pytest.mark.parametrize("name", ["small.safetensors", "small.json"])
def test_one_wrong_byte_is_found(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: corrupt: its SHA-256 is") as caught:
        teacher_files.read("small", copy)
    assert "\n" not in str(caught.value)
    assert teacher_files.read("large", copy).shape.width == 64


def test_missing_files_and_unknown_names(copy):
    with pytest.raises(UserError, match="no teacher 'middle'; allowed are large, small"):
        teacher_files.read("middle", copy)
    (copy / "small.json").unlink()
    with pytest.raises(UserError, match=r"small.json: cannot be read \(No such file"):
        teacher_files.read("small", copy)
    (copy / "SHA256SUMS").write_text("")
    with pytest.raises(UserError, match="SHA256SUMS says nothing"):
        teacher_files.read("large", copy)
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match="SHA256SUMS: cannot be read"):
        teacher_files.read("large", copy)


def test_weights_of_another_shape_are_refused(copy):
    shipped = teacher_files.read("small", copy)
    record = json.loads((copy / "small.json").read_text()) | {"words": shipped.words}
    teacher_files.write(copy, "small", initial_weights(OPTShape(10, 16, 1, 2, 9), torch_stream(0, "init")), record)
    with pytest.raises(UserError, match="not those of the shape"):
        teacher_files.read("small", copy)


def test_initial_weights_and_causality():
    shape = OPTShape(vocab=50, width=8, layers=2, heads=2, positions=6)
    weights = initial_weights(shape, torch_stream(3, "init"))
    assert {name: tuple(value.shape) for name, value in weights.items()} == shapes(shape)
    norm = "model.decoder.final_layer_norm"
    assert (weights[f"{norm}.weight"] == 1).all()
    assert (weights[f"{norm}.bias"] == 0).all()
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, 4] = 40
    one, other = (hidden_states(weights, 2, x)[0] for x in (tokens, changed))
    assert torch.equal(one[:, :4], other[:, :4])
    assert not torch.allclose(one[:, 4:], other[:, 4:])
