"""What a reader must never meet, looked for in the built HTML without a browser; what a published book must hold."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sameloss.pages import ledger
from sameloss.pages.claims import CLAIMS
from sameloss.runs import results
from sameloss.runs.profile import Profile
from sameloss.runs.settings import CHAPTERS

WORDS = re.compile(r"[^\W\d_]{2,}")
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
WORDS_A_MINUTE = 200
LONGEST_STRETCH = 15  # minutes that a reader is asked for between two headings
FILENAME = re.compile(r"^\S*\.(png|svg|jpe?g)$|^[0-9a-f]{16,}")
RAW = re.compile(r"(?:```|:::)\{[\w:-]+\}")  # what stands in no code block of these pages
STAMP = ("profile", "seeds", "revision", "recipe", r"\b20\d\d-\d\d-\d\d\b", "Python")  # parts of a provenance line
VERDICTS = "Verdicts of this chapter"
# What matplotlib calls error bars and bands (and few other things); what a caption says of them, or that it has none.
BARS = re.compile(r'id="(LineCollection|FillBetweenPolyCollection)_')
SPREAD = re.compile(
    r"intervals?|standard (errors?|deviations?)|quartiles?|\bbands?\b|\brange\b|\bone (seed|draw)\b|\bexact\b", re.I
)


class Page(HTMLParser):
    """The few facts of a page that the checks need."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.images: list[str] = []
        self.figures: list[dict[str, str]] = []
        self.verdicts: list[str] = []  # what stands below each table of verdicts
        self.faults: list[str] = []
        self.stretches = [0]  # words of running text between headings
        self._depth: list[str] = []
        self._caption = self._paragraph = self._stamp = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        classes = given.get("class", "").split()
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHING and given.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.fetched.append(given.get(FETCHING[tag], ""))
        if tag == "img":
            self.images.append(given.get("alt", ""))
            if self._depth:
                self.figures[-1]["image"] = given.get("src", "")
        if tag in ("h2", "h3"):
            self.stretches.append(0)
        if tag == "p":
            self._paragraph = True
        if tag == "figure":
            self._depth.append(given.get("id", ""))
            self.figures.append({"id": given.get("id", ""), "caption": "", "stamp": "", "image": ""})
        if self._depth and tag == "figcaption":
            self._caption = True
        if given.get("aria-label") == VERDICTS:
            self.verdicts.append("")
        if "stamp" in classes:
            self._stamp = True
        if "stderr" in classes:
            self.faults.append("an output to stderr")
        if "traceback" in classes:
            self.faults.append("a traceback")
        if "problematic" in classes or "system-message" in classes:
            self.faults.append("a message of Sphinx")

    def handle_endtag(self, tag: str) -> None:
        if tag == "figure" and self._depth:
            self._depth.pop()
        if tag == "figcaption":
            self._caption = False
        if tag == "p":
            self._paragraph = self._stamp = False

    def handle_data(self, data: str) -> None:
        if self._paragraph:
            self.stretches[-1] += len(data.split())
        if self._stamp and self._depth:
            self.figures[-1]["stamp"] += data
        elif self._stamp and self.verdicts:
            self.verdicts[-1] += data
        elif self._caption and self.figures:
            self.figures[-1]["caption"] += f" {data}"


def problems(html: Path, expected: list[str]) -> list[str]:
    """One line for each fault of a built book; none for a book that is fit to be read.

    html: the folder. expected: names of the pages under book/.
    """
    found = [f"page {name} is missing" for name in expected if not (html / "book" / f"{name}.html").is_file()]
    extra = {path.stem for path in (html / "book").glob("*.html")} - set(expected)
    found += [f"page {name} is in no table of contents" for name in sorted(extra)]
    if found:
        return found
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(html.rglob("*.html")) if _is_page(path)}
    pages = {path: Page(text) for path, text in texts.items()}
    for path, page in pages.items():
        name = path.relative_to(html).as_posix()
        found += [f"{name}: a directive that is shown as text ({raw})" for raw in RAW.findall(texts[path])]
        found += [f"{name}: {fault}" for fault in dict.fromkeys(page.faults)]
        found += [f"{name}: fetches {url}" for url in page.fetched if urlsplit(url).scheme in ("http", "https")]
        found += [f"{name}: fetches {url}" for url in page.fetched if url.startswith("//")]
        found += [f"{name}: an image without alt text in words ({alt!r})" for alt in page.images if not _words(alt)]
        found += [f"{name}: {fault}" for figure in page.figures for fault in _figure_faults(figure, path.parent)]
        found += [f"{name}: {fault}" for stamp in page.verdicts for fault in _stamp_faults(VERDICTS, stamp)]
        minutes = max(page.stretches) / WORDS_A_MINUTE
        found += [f"{name}: {minutes:.0f} minutes without a heading"] * (minutes > LONGEST_STRETCH)
        found += [f"{name}: dead link {link}" for link in _dead(path, page, pages)]
    return found


def unready(profile: Profile, pages: list[str]) -> list[str]:
    """Why a book at this profile is not to be published, found before anything is computed: one line for each reason.

    Every chapter with settings is a page, every run of the profile has its rows in book/results, for exactly its spec.
    """
    found = [f"profile {profile.name} decides nothing"] if profile.name == "smoke" else []
    found += [f"chapter {name} is in no table of contents" for name in CHAPTERS if name not in pages]
    for chapter in CHAPTERS:
        files = {
            spec.name: results.path(profile.name, chapter, spec.name, spec.key()) for spec in profile.runs(chapter)
        }
        found += [f"{chapter}: no published rows of {name}" for name, file in files.items() if not file.is_file()]
    return found


def untested(profile: str) -> list[str]:
    """Claims without a row in the ledger of an executed book: one line for each."""
    tested = {row["claim"] for row in ledger.read(profile)}
    return [f"claim {key} has no verdict: no chapter tests it" for key in CLAIMS if key not in tested]


def _is_page(path: Path) -> bool:
    return "_static" not in path.parts and path.name not in ("genindex.html", "search.html", "index.html")


def _words(alt: str) -> bool:
    return len(WORDS.findall(alt)) >= 3 and not FILENAME.match(alt)


def _figure_faults(figure: dict[str, str], folder: Path) -> list[str]:
    name, caption = f"figure {figure['id']}", figure["caption"]
    faults = [] if figure["image"] else [f"{name} has no image"]
    if len(WORDS.findall(caption)) < 4 or not re.search(r"Figure\s+\d", caption):
        faults.append(f"{name} has no numbered caption")
    file = folder / unquote(figure["image"])
    if file.suffix == ".svg" and file.is_file() and BARS.search(file.read_text(encoding="utf-8")):
        faults += [] if SPREAD.search(caption) else [f"{name}: its caption does not say what its bars or bands are"]
    return faults + _stamp_faults(name, figure["stamp"])


def _stamp_faults(name: str, stamp: str) -> list[str]:
    """A provenance line that is not there, or lacks a part."""
    missing = [part for part in STAMP if not re.search(part, stamp)]
    if len(missing) == len(STAMP):
        return [f"{name} has no provenance line"]
    return [f"{name}: its provenance line lacks {part}" for part in missing]


def _dead(path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    """Links inside the book that lead nowhere."""
    dead = []
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or not link or link == "#":
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        known = pages.get(target)
        if not target.is_file() or (known and parts.fragment and unquote(parts.fragment) not in known.ids):
            dead.append(link)
    return list(dict.fromkeys(dead))
