"""The gallery: each picture has the command that makes it, and is small."""

from __future__ import annotations

import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
GALLERY = runpy.run_path(str(ROOT / "docs/gallery.py"))
PAGE = (ROOT / "docs/gallery.md").read_text()
MAX_BYTES, LEAST_PICTURES = 40_000, 20


def test_each_picture_has_its_command_and_is_small():
    """The command stands under it and names it; nothing else is in the folder."""
    shown = re.findall(r"!\[([^]]+)\]\(gallery/([\w-]+)\.png\)", PAGE)
    under = re.findall(r"^!\[.*\]\(gallery/([\w-]+)\.png\)\n\n.+\n\n {4}(.+)$", PAGE, re.MULTILINE)
    names = [name for _, name in shown]
    assert under == [(name, f"python docs/gallery.py {name}") for name in names]
    assert len(set(names)) == len(names) >= LEAST_PICTURES
    assert set(names) == GALLERY["PICTURES"].keys()
    files = {path.stem: path for path in (ROOT / "docs/gallery").iterdir()}
    assert files.keys() == set(names)
    for path in files.values():
        assert path.stat().st_size <= MAX_BYTES, path.name
        with Image.open(path) as image:
            assert image.width <= GALLERY["WIDTH"]


def test_each_picture_of_a_notebook_is_there():
    """With as many figures as the numbers ask for: another test runs the notebooks."""
    notebooks = runpy.run_path(str(ROOT / "docs/notebooks.py"))
    for draw in GALLERY["PICTURES"].values():
        if getattr(draw, "func", None) is GALLERY["of_notebook"]:
            name, number = draw.args
            content = notebooks["read"](notebooks["NOTEBOOKS"] / f"{name}.ipynb")
            assert notebooks["figures"](content)[number].startswith(b"\x89PNG")


SHORTER = {r"run\.rounds=.*": "run.rounds=2", r"data\.partition=dirichlet:.*": "data.partition=iid"}


@pytest.mark.usefixtures("quick")
def test_each_command_makes_its_picture(tmp_path, monkeypatch):
    """As wide as the one on the page, on white; of runs of two rounds, and fewer of them."""

    def shorter(setting):
        return next((to for of, to in SHORTER.items() if re.fullmatch(of, setting)), setting)

    made_by = GALLERY["main"].__globals__
    for name in ("run", "recorded"):
        whole = made_by[name]
        monkeypatch.setitem(made_by, name, lambda *of, whole=whole: whole(*map(shorter, of)))
    names = [name for name, draw in GALLERY["PICTURES"].items() if not hasattr(draw, "func")]
    monkeypatch.setattr(sys, "argv", ["gallery.py", *names, "--out", str(tmp_path)])
    GALLERY["main"]()
    for name in names:
        with (
            Image.open(io.BytesIO((tmp_path / f"{name}.png").read_bytes())) as made,
            Image.open(ROOT / f"docs/gallery/{name}.png") as kept,
        ):
            assert made.width == kept.width
            assert made.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
