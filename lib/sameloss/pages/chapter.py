"""The one object a chapter talks to: settings, parameters, glued numbers, figures, verdicts."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import display
from matplotlib.figure import Figure

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.pages import claims, figures, ledger, parameters, provenance
from sameloss.pages.table import Table, badge, badges, with_small
from sameloss.runs.profile import load_profile

GLUE = "application/papermill.record/"  # myst-nb's prefix for a value that is kept but not shown
LARGEST_CSV = 100_000  # bytes of numbers that a page carries under a figure


class Chapter:
    """One chapter at one profile; starts its figures in the book's style and its ledger empty.

    UserError when the profile does not exist. `name` is the file's: "02_same_loss" for book/02_same_loss.md.
    """

    integer = staticmethod(parameters.integer)
    number = staticmethod(parameters.number)
    numbers = staticmethod(parameters.numbers)
    flag = staticmethod(parameters.flag)
    choice = staticmethod(parameters.choice)
    text = staticmethod(parameters.text)
    file = staticmethod(parameters.file)

    def __init__(self, name: str, profile: Any) -> None:
        if not isinstance(profile, str):
            raise UserError(f"parameter profile: found {profile!r}; allowed: the name of a profile, such as smoke")
        self.name, self.profile = name, load_profile(profile)
        self._rows: list[dict[str, Any]] = []
        ledger.write(self.profile.name, name, [])
        figures.use()
        # On a busy machine two threads of a small model wait for each other for minutes where one needs seconds.
        torch.set_num_threads(self.profile.threads)

    @property
    def settings(self) -> Any:
        """The profile's settings for this chapter."""
        return self.profile.chapter(self.name)

    def prediction(self, claim: str) -> str:
        """What the profile says of a claim, written before its runs; where it says nothing, what laptop says."""
        if own := self.settings.predictions.get(claim):
            return str(own)
        other = load_profile("laptop").chapter(self.name).predictions.get(claim)
        return f"{other} (written for profile laptop)" if other else "none was written"

    def glue(self, name: str, value: Any) -> None:
        """Keep a value for the prose: {glue:text}`name:.3f` (number), {glue:text}`name` (text, Estimate).

        An Estimate also gives `name-value`, `name-se`, `name-n`, `name-low`, `name-high` (95 % interval).
        """
        if isinstance(value, Estimate):
            low, high = value.interval()
            parts = {"value": value.value, "se": value.stderr, "n": value.n, "low": low, "high": high}
            for part, number in parts.items():
                self.glue(f"{name}-{part}", number)
            value = str(value)
        elif isinstance(value, (np.generic, np.ndarray)) or hasattr(value, "item"):
            value = value.item()
        if not isinstance(value, (str, int, float)):
            raise TypeError(f"glue {name!r}: a number, a text or an Estimate, found {type(value).__name__}")
        _record(name, {"text/plain": repr(value)}, hidden=True)

    def figure(
        self,
        fig: Figure,
        name: str,
        numbers: pd.DataFrame | Mapping[str, Any],
        *,
        runs: Iterable[str] = (),
        seeds: Iterable[int] = (),
        origin: dict[str, Any] | None = None,
    ) -> None:
        """Show `fig`, and keep it as `name` for the directive {result} with the numbers it shows and its stamp.

        numbers: a tidy table (or column -> values) of what is drawn. Its columns `run` and `seed` and its
        attrs["origin"] (the provenance of rows that were read) fill `runs`, `seeds` and `origin` where not given.
        """
        frame = numbers if isinstance(numbers, pd.DataFrame) else _frame(numbers)
        stamp = self.provenance(frame, runs=runs, seeds=seeds, origin=origin)
        csv = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        if len(csv) > LARGEST_CSV:
            raise ValueError(f"figure {name!r}: {len(csv)} bytes of numbers; draw and store at most {LARGEST_CSV}")
        data = {"image/svg+xml": figures.to_svg(fig), "text/plain": f"<figure {name}>"}
        plt.close(fig)
        _record(name, data, hidden=False)
        self.glue(f"{name}-stamp", stamp)
        self.glue(f"{name}-csv", base64.b64encode(csv.encode()).decode())

    def provenance(
        self,
        table: pd.DataFrame | None = None,
        *,
        runs: Iterable[str] = (),
        seeds: Iterable[int] = (),
        origin: dict[str, Any] | None = None,
    ) -> str:
        """The line that says where numbers come from."""
        runs, seeds = list(runs), list(seeds)
        if table is not None:
            runs = runs or (list(table["run"].dropna().unique()) if "run" in table else [])
            seeds = seeds or (list(table["seed"].dropna().unique()) if "seed" in table else [])
            origin = origin or table.attrs.get("origin")
        return provenance.line(self.profile.name, runs, seeds, origin)

    def verdict(
        self,
        claim: str,
        statistic: str,
        estimate: Estimate | None,
        verdict: str,
        *,
        seeds: Iterable[int] = (),
        note: str = "",
        figure: str = "",
        table: pd.DataFrame | None = None,
    ) -> None:
        """Add a row to the ledger: `verdict` comes from `claims.verdict` or `claims.theory_verdict`, never typed.

        statistic: what the number is ("accuracy, large minus small, task B"). figure: the name of its figure.
        table: the rows it was computed from, for the provenance line.
        """
        known = claims.claim(claim)
        allowed = claims.EMPIRICAL if known.kind == "empirical" else claims.THEORETICAL
        if verdict not in allowed:
            raise ValueError(f"claim {claim}: verdict {verdict!r}; allowed: {', '.join(allowed)}")
        seeds = list(seeds) or (list(table["seed"].dropna().unique()) if table is not None and "seed" in table else [])
        self._rows.append(
            {
                "claim": claim,
                "chapter": self.name,
                "profile": self.profile.name,
                "statistic": statistic,
                "here": _finite(estimate),
                "verdict": verdict,
                "seeds": provenance.spans(seeds),
                "note": note,
                "figure": figure,
                "p": None,
                "stamp": self.provenance(table, seeds=seeds),
            }
        )
        ledger.write(self.profile.name, self.name, self._rows)

    def table(self, frame: pd.DataFrame, note: str = "") -> Table:
        """A generated table for the page, with a line below it."""
        return Table(frame, note=note)

    def verdict_table(self) -> Table:
        """The chapter's verdicts: statistic, the paper's number, ours with seeds, p after Holm; provenance below."""
        rows = [
            {
                "claim": f'<a href="ledger.html#{row["claim"].lower()}">{row["claim"]}</a>',
                "statistic": with_small(row["statistic"], row["note"]),
                "paper": f"{claims.CLAIMS[row['claim']].number} ({claims.CLAIMS[row['claim']].place})",
                "here": with_small(ledger.shown_value(row), f"seeds {row['seeds']}" if row["seeds"] else ""),
                "p (Holm)": "" if row["p"] is None else f"{row['p']:.2g}",
                "verdict": badge(row["verdict"]),
            }
            for row in ledger.with_p_values(self._rows)
        ]
        frame = pd.DataFrame(rows)
        if not frame.empty:  # a claim's number once, however many statistics follow
            frame["paper"] = frame["paper"].mask(frame["claim"].eq(frame["claim"].shift()), "")
            if not frame["p (Holm)"].any():
                frame = frame.drop(columns="p (Holm)")
        stamps = list(dict.fromkeys(row["stamp"] for row in self._rows))
        markup = ("claim", "statistic", "here", "verdict")
        return Table(frame, note="\n".join(stamps), markup=markup, label="Verdicts of this chapter")

    def outcome(self) -> Table:
        """Each claim of the chapter with what was expected of it, and the verdicts of its statistics, counted."""
        rows = [
            {
                "claim": f'<a href="ledger.html#{key.lower()}">{key}</a>',
                "what is claimed": with_small(claims.CLAIMS[key].statement, f"Expected: {self.prediction(key)}."),
                "what came out": badges(row["verdict"] for row in self._rows if row["claim"] == key),
            }
            for key in dict.fromkeys(row["claim"] for row in self._rows)
        ]
        return Table(pd.DataFrame(rows), markup=("claim", "what is claimed", "what came out"), label="What came out")


def _record(name: str, data: dict[str, str], hidden: bool) -> None:
    """Display `data` and let myst-nb know it by `name`; hidden: keep it in the notebook without showing it."""
    prefix = GLUE if hidden else ""
    metadata = {"scrapbook": {"name": name, "mime_prefix": prefix}}
    display({prefix + mime: value for mime, value in data.items()}, raw=True, metadata=metadata)


def _frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Columns of unequal length (or single numbers) as one table."""
    return pd.DataFrame({name: pd.Series(np.atleast_1d(np.asarray(value)).ravel()) for name, value in columns.items()})


def _finite(estimate: Estimate | None) -> tuple[float, float, int] | None:
    if estimate is None or not np.isfinite(estimate.value):
        return None
    return float(estimate.value), float(estimate.stderr) if np.isfinite(estimate.stderr) else 0.0, int(estimate.n)
