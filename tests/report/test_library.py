from __future__ import annotations

import pytest

from tracekit.errors import UsageError
from tracekit.report.drawing import library as lib


@pytest.fixture
def bundles(tmp_path, monkeypatch):
    """A cache folder of its own, and how often the script was made: each time `made` is longer."""
    made = []

    def bundle():
        made.append("made anew")
        return "script\r\n\u2028" + ";".join(made)

    monkeypatch.setattr(lib, "bundle", bundle)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    # What a build may have put into the package is looked for under another name.
    monkeypatch.setattr(lib, "_BUILT_IN", "no such file")
    lib.library.cache_clear()
    yield made
    lib.library.cache_clear()


def again():
    lib.library.cache_clear()
    return lib.library()


def kept(folder):
    return [path for path in (folder / "cache").rglob("*") if path.is_file()]


def test_the_script_is_made_once_and_kept(bundles, tmp_path):
    assert again() == again() == "script\r\n\u2028made anew"
    assert len(bundles) == len(kept(tmp_path)) == 1


@pytest.mark.parametrize("damage", [b"", b"half", b"\xff\xfe\n\xff"])
def test_a_damaged_script_is_made_anew(bundles, tmp_path, damage):
    again()
    (place,) = kept(tmp_path)
    place.write_bytes(damage)
    assert again() == "script\r\n\u2028made anew;made anew"
    again()
    assert len(bundles) == 2


def test_without_a_place_to_keep_it_the_script_is_made_each_time(bundles, tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    again()
    again()
    assert len(bundles) == 2


def test_another_version_keeps_its_own(bundles, tmp_path, monkeypatch):
    again()
    monkeypatch.setattr(lib, "version", lambda _: "0.0.1")
    again()
    assert len(bundles) == len(kept(tmp_path)) == 2


def test_what_a_build_put_into_the_package_is_taken(bundles, monkeypatch):
    monkeypatch.setattr(lib, "_BUILT_IN", "page.js")
    assert "vegaEmbed(" in again()
    assert bundles == []


def test_without_vl_convert_it_is_one_sentence(bundles, monkeypatch):
    def missing(name):
        raise lib.PackageNotFoundError(name)

    monkeypatch.setattr(lib, "version", missing)
    with pytest.raises(UsageError, match="the page needs vl-convert-python"):
        again()


def test_no_tag_ends_in_the_script():
    lib.library.cache_clear()
    script = lib.library()
    assert "</script" not in script
    assert "window.vegaEmbed" in script
