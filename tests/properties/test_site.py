"""The site's pages: no link leads nowhere, none is left out, the reference has all."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import securefl
from securefl import errors
from securefl.crypto.params import SUMS
from securefl.exchange.sums import ONE_TIME, ONE_TIME_PROFILE
from securefl.federation import message
from securefl.network import bodies, frames
from securefl.settings.load import flat, load_config

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    runpy.run_path(str(ROOT / "docs/site.py"))["write_pages"](out)
    return out


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text):
    """Return the anchors that the site makes of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        kept = re.sub(r"[^\w\s-]", "", words).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", kept))
    return found


def test_each_link_leads_to_a_page_and_a_heading(pages):
    for page in pages.rglob("*.md"):
        text = without_code(page.read_text())
        for target, anchor in LINK.findall(text):
            if "://" in target or target.startswith("mailto:"):
                continue
            place = page if not target else (page.parent / target).resolve()
            assert place.is_file(), f"{page.relative_to(pages)}: {target}"
            if anchor:
                assert anchor in anchors_of(place.read_text()), f"{page.name}: {target}#{anchor}"


def test_each_page_has_its_place(pages):
    """In the site's menu; results have a page that lists them."""
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    found = {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    listed = (pages / "results/index.md").read_text()
    results = {f"results/{name}" for name in re.findall(r"\(([\w-]+\.md)\)", listed)}
    assert {*menu, *results} == found
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["theme"]["font"] is False


def test_the_reference_has_each_command_key_and_name(pages):
    commands = (pages / "reference/commands.md").read_text()
    for name in ("run", "audit", "keys init", "site join", "server serve", "export", "watch"):
        assert f"\n## securefl {name}\n" in commands
    settings = (pages / "reference/settings.md").read_text()
    keys = [key for key, _ in flat(load_config().tables()) if key != "privacy.level"]
    assert not [k for k in keys if f"`{k}`" not in settings and f"`{k} = " not in settings]
    names = (pages / "reference/api.md").read_text()
    assert names.count("\n::: ") == len(securefl.__all__)


def test_the_reference_has_what_pages_import(pages):
    """Each name of `from securefl.module import name` in a block of a page, notebooks aside."""
    reference = (pages / "reference/own-choices.md").read_text()
    sections = re.findall(
        r"^::: (\S+)(?:\n +options: .*members: \[(.*?)\])?", reference, re.MULTILINE
    )
    known = {f"{of}.{name}" if name else of for of, names in sections for name in names.split(", ")}
    for module, _, name in (place.rpartition(".") for place in known):
        assert hasattr(import_module(module), name)
    imported = set()
    for page in pages.rglob("*.md"):
        if page.parent.name not in {"notebooks", "results"}:
            lines = re.findall(
                r"^from (securefl\.\S+) import (.+)$", page.read_text(), re.MULTILINE
            )
            imported |= {f"{module}.{name}" for module, of in lines for name in of.split(", ")}
    assert len(imported) > 4
    assert imported <= known


@pytest.mark.parametrize(
    ("setting", "section"),
    [
        ("algorithm.name=singlenet", "Settings that do not go together"),
        ("run.workers=2", "ConfigError"),
    ],
)
def test_a_message_is_among_the_errors(pages, setting, section):
    """Under its heading, word for word but for what is put in."""
    with pytest.raises(errors.ConfigError) as raised:
        load_config(settings=[setting])
    page = (pages / "reference/errors.md").read_text()
    listed = re.findall("- `` (.*) ``", page.split(f"## {section}\n")[1].split("\n## ")[0])
    patterns = (".*".join(map(re.escape, message.split("…"))) for message in listed)
    assert any(re.search(pattern, str(raised.value)) for pattern in patterns)


def test_each_error_has_a_section(pages):
    headings = re.findall("^## (.*)$", (pages / "reference/errors.md").read_text(), re.MULTILINE)
    assert set(headings[1:]) == {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.SecureFLError)
    }


def test_language_models_find_each_page(pages):
    """In llms.txt: a title, a summary, and each page of the site, most with a sentence of it."""
    text = (pages / "llms.txt").read_text()
    assert re.match(r"# SecureFL\n\n> .*\n\n## ", text)
    links = re.findall(r"^- \[[^]]+\]\(([\w/-]+)\.html\)(: \S.*)?$", text, re.MULTILINE)
    found = sorted(
        page.relative_to(pages).with_suffix("").as_posix() for page in pages.rglob("*.md")
    )
    assert sorted(name for name, _ in links) == found
    assert sum(not said for _, said in links) <= 5


def test_the_page_of_messages_has_all_fields_forms_and_frames():
    """By name, and frames with their numbers."""
    page = (ROOT / "docs/wire.md").read_text()
    assert all(f"`{name}`" in page for name in message.Header.model_fields)
    assert all(f"`{frame.name}` {frame.value}" in page for frame in frames.Frame)
    forms = (ONE_TIME, ONE_TIME_PROFILE, message.NUMBER_FORM, message.CARD_FORM)
    assert all(f"`{form}`" in page for form in forms)
    assert f"version {message.VERSION})" in page
    assert f"version {bodies.VERSION} between" in page
    assert f"{SUMS.ciphertext_bytes:,} bytes each" in page
