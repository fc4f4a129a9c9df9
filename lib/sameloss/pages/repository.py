"""Links from the pages to a public repository and to Binder, taken from the git remote; none where it is not public."""

import re
from typing import Any
from urllib.parse import quote

from sameloss.runs.provenance import git

# host: where it shows a file, Binder's name for it. HEAD stands for the default branch.
HOSTS = {"github.com": ("blob/HEAD", "gh"), "gitlab.com": ("-/blob/HEAD", "gl"), "bitbucket.org": ("src/HEAD", "")}
BINDER = "https://mybinder.org/v2"
REMOTE = re.compile(
    r"^(?:(?:https?|ssh|git)://(?:[^@/\s]+@)?|[\w.-]+@)(?P<host>[\w.-]+)(?::\d+)?[:/](?P<path>[\w./~-]+?)(?:\.git)?/?$"
)


def public(remote: str) -> str:
    """The web address of a remote on a public host, without user names or tokens; "" for any other remote."""
    found = REMOTE.match(remote.strip())
    if found is None or found["host"].lower() not in HOSTS or "/" not in found["path"].strip("/"):
        return ""
    return f"https://{found['host'].lower()}/{found['path'].strip('/')}"


def address() -> str:
    """The public address of this checkout's remote (origin, else the first), "" where there is none."""
    names = git("remote").split()
    return public(git("remote", "get-url", "origin" if "origin" in names else names[0])) if names else ""


def buttons(repository: str, page: str, notebook: bool) -> list[dict[str, Any]]:
    """Buttons for the head of a page, as the theme has them: its source text and, for a notebook, Binder."""
    host, _, name = repository.removeprefix("https://").partition("/")
    place, binder = HOSTS[host]
    found = [_button("Source of this page", "fas fa-code-branch", f"{repository}/{place}/{page}.md")]
    if notebook and binder:
        # Binder opens the text itself as a notebook, which jupytext makes of it.
        path = quote(f"lab/tree/{page}.md?factory=Notebook", safe="")
        name = quote(name, safe="") if binder == "gl" else name
        found.append(_button("Run on Binder", "fas fa-rocket", f"{BINDER}/{binder}/{name}/HEAD?urlpath={path}"))
    return found


def _button(words: str, icon: str, url: str) -> dict[str, Any]:
    label = words.lower().replace(" ", "-") + "-button"
    return {"type": "link", "url": url, "text": "", "tooltip": words, "icon": icon, "label": label}
