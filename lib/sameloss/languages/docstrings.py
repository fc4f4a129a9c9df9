"""The English text that Python itself carries: the docstrings of its standard library, in six topics."""

import ast
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sameloss.errors import UserError

# Six groups of modules (top-level names); every module that no group names belongs to "system".
_GROUPS = """
windows: tkinter idlelib turtle turtledemo curses cmd code codeop readline rlcompleter
network: email asyncio http urllib smtplib smtpd imaplib poplib ftplib nntplib telnetlib socket socketserver ssl
network: select selectors xmlrpc wsgiref cgi cgitb ipaddress webbrowser mailbox mailcap uuid html asynchat asyncore
numbers: _pydecimal decimal statistics fractions datetime random numbers calendar heapq bisect collections array
numbers: _collections_abc operator functools enum graphlib colorsys _strptime copy queue sched secrets struct
numbers: difflib itertools math cmath zoneinfo
testing: unittest doctest logging pdb bdb traceback trace timeit profile cProfile pstats warnings tracemalloc
testing: faulthandler pydoc argparse optparse getopt configparser
source: lib2to3 importlib typing inspect ast dis distutils pickletools pyclbr symtable tokenize token keyword
source: codecs dataclasses types abc contextlib pkgutil zipimport imp runpy modulefinder py_compile compileall re
source: sre_compile sre_parse opcode textwrap string ensurepip venv
"""
_TOPIC_OF = {
    module: line.partition(":")[0] for line in _GROUPS.strip().splitlines() for module in line.partition(":")[2].split()
}
TOPICS = (*dict.fromkeys(_TOPIC_OF.values()), "system")
_SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "__pycache__"})
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")


@dataclass(frozen=True)
class Corpus:
    """Sentences (lists of lower-case words) of every topic, in the order of the source files.

    digest: SHA-256 of the text, topics included; it changes with the patch version of Python.
    """

    topics: dict[str, list[list[str]]]
    digest: str

    def counts(self) -> Counter[str]:
        """How often each word occurs in all topics together."""
        return Counter(word for sentences in self.topics.values() for sentence in sentences for word in sentence)


def topic_of(module: str) -> str:
    """The topic of a top-level module."""
    return _TOPIC_OF.get(module, "system")


def words_of(text: str) -> list[str]:
    """The words of a text: letters in lower case, a suffix behind an apostrophe included, nothing else."""
    return _WORD.findall(text.lower())


def read(folder: Path | None = None) -> Corpus:
    """The docstrings below `folder` (default: the standard library of the running Python), without tests.

    A paragraph that occurred before is left out, and so are sentences without a word. UserError where there is
    no Python source.
    """
    folder = Path(folder or sysconfig.get_path("stdlib"))
    topics: dict[str, list[list[str]]] = {topic: [] for topic in TOPICS}
    seen: set[str] = set()
    for file in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        relative = file.relative_to(folder)
        if _SKIPPED & set(relative.parts):
            continue
        sentences = topics[topic_of(relative.parts[0].removesuffix(".py"))]
        for paragraph in _paragraphs(file):
            if paragraph in seen:
                continue
            seen.add(paragraph)
            found = (words_of(sentence) for sentence in _SENTENCE_END.split(paragraph))
            sentences.extend(words for words in found if words)
    if not any(topics.values()):
        raise UserError(f"{folder}: no docstrings found; allowed is a folder with Python source files")
    lines = (f"{topic}\t{' '.join(words)}\n" for topic, sentences in topics.items() for words in sentences)
    return Corpus(topics, hashlib.sha256("".join(lines).encode()).hexdigest())


def _paragraphs(file: Path) -> Iterator[str]:
    """Paragraphs of all docstrings of a file, white space collapsed; nothing for a file that does not parse."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # lib2to3 and others ship deliberately broken or Python 2 sources
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                yield " ".join(paragraph.split())
