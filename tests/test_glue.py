"""GLUE's files: small ones written here in its format, what can be wrong with them, and the encoding for LM text."""

import sys

import numpy as np
import pytest

from sameloss.errors import UserError
from sameloss.languages import glue
from sameloss.languages.lm_text import LMText

SST2 = 'sentence\tlabel\nthis is a "new" file \t1\nthe path is not set\t0\nno word of it\t0\n'
QNLI = (
    "index\tquestion\tsentence\tlabel\n"
    "0\tWhat is the name of the class ?\tThe name of it is used in the file .\tentailment\n"
    "1\tWhich list is returned ?\tIf the value is true , return an object .\tnot_entailment\n"
)


@pytest.fixture
def folder(tmp_path):
    for task, text in (("SST-2", SST2), ("QNLI", QNLI)):
        (tmp_path / task).mkdir()
        (tmp_path / task / "dev.tsv").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def language():
    return LMText.embedded()


def test_reads_both_tasks_from_folders_and_files(folder):
    one = glue.read(folder, "SST-2")
    assert one.texts[0] == ('this is a "new" file',)
    assert one.labels.tolist() == [1, 0, 0]
    assert glue.read(folder / "SST-2", "SST-2").texts == glue.read(folder / "SST-2" / "dev.tsv", "SST-2").texts
    two = glue.read(folder, "QNLI")
    assert [len(texts) for texts in two.texts] == [2, 2]
    assert two.labels.tolist() == [0, 1]


def test_line_ends_and_separators_inside_sentences(folder):
    file = folder / "SST-2" / "dev.tsv"
    file.write_bytes("\ufeffsentence\tlabel\r\nthe\x0bfile\x85name\t1\r\n".encode())
    assert glue.read(file, "SST-2").texts == [("the\x0bfile\x85name",)]


def test_encoding_keeps_known_words_and_gives_each_text_its_half(folder, language):
    sentences, labels, known = glue.encode(glue.read(folder, "QNLI"), language)
    words = [[language.vocab[v] for v in row[row >= 0]] for row in sentences.tokens]
    assert words[0] == ["is", "the", "name", "of", "the", "name", "of", "it"]
    assert words[1] == ["which", "list", "is", "returned", "if", "the", "value", "is"]
    assert labels.tolist() == [0, 1]
    assert known == pytest.approx(27 / 28)
    assert (sentences.lengths == (sentences.tokens >= 0).sum(1)).all()


def test_examples_without_a_known_word_are_dropped(folder, language):
    (folder / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nutterly gorgeous\t1\nthe file\t0\n")
    sentences, labels, _ = glue.encode(glue.read(folder, "SST-2"), language)
    assert len(sentences) == 1
    assert labels.tolist() == [0]
    (folder / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nutterly gorgeous\t1\n")
    with pytest.raises(UserError, match="none of 2 words"):
        glue.encode(glue.read(folder, "SST-2"), language)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence\tlabel\ngood\t1\nbad\n", "line 3: 1 columns found, allowed is 2"),
        ("sentence\tlabel\ngood\t1\nbad\t0\textra\n", "line 3: 3 columns found"),
        ("sentence\tlabel\ngood\t2\n", "line 2: label '2' found, allowed is 0 or 1"),
        ("sentence\tlabel\n  \t1\n", "line 2: an empty text"),
        ("index\tsentence\n0\tgood\n", "line 1: no column 'label'"),
        ("sentence\tlabel\n", "no example found"),
        ("", "line 1: no column 'sentence'"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    file = tmp_path / "dev.tsv"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        glue.read(file, "SST-2")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_places_and_names(folder):
    with pytest.raises(UserError, match=r"no file train.tsv found"):
        glue.read(folder, "SST-2", "train")
    with pytest.raises(UserError, match="allowed is SST-2, QNLI"):
        glue.read(folder, "CoLA")
    (folder / "SST-2" / "dev.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    with pytest.raises(UserError, match="UTF-8"):
        glue.read(folder, "SST-2")


def test_through_datasets(folder, tmp_path, monkeypatch):
    import datasets

    wanted = glue.read(folder, "QNLI")
    rows = {
        "question": [texts[0] for texts in wanted.texts],
        "sentence": [texts[1] for texts in wanted.texts],
        "label": wanted.labels.tolist(),
        "idx": [0, 1],
    }
    data = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"validation": data}).save_to_disk(str(tmp_path / "saved"))
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, split: asked.append((*names, split)) or data)
    for found in (glue.from_datasets("QNLI", path=tmp_path / "saved"), glue.from_datasets("QNLI")):
        assert found.texts == wanted.texts
        assert np.array_equal(found.labels, wanted.labels)
    assert asked == [("nyu-mll/glue", "qnli", "validation")]
    data = datasets.Dataset.from_dict(rows | {"label": [-1, -1]})
    with pytest.raises(UserError, match=r"row 1: label '-1' found"):
        glue.from_datasets("QNLI")
    data = datasets.Dataset.from_dict({"sentence": ["a"], "label": [0]})
    with pytest.raises(UserError, match="no column 'question'"):
        glue.from_datasets("QNLI")


def test_datasets_that_cannot_be_loaded(tmp_path, monkeypatch):
    import datasets

    with pytest.raises(UserError, match="cannot load it"):
        glue.from_datasets("SST-2", path=tmp_path / "nothing")

    def offline(*names, split):
        raise ConnectionError("Couldn't reach the hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError, match="Couldn't reach the hub") as caught:
        glue.from_datasets("SST-2")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="allowed is train, dev"):
        glue.from_datasets("SST-2", "test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the package datasets"):
        glue.from_datasets("SST-2")
