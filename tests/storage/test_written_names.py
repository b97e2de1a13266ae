"""A name is found by what a file writes for it, and by nothing that could mean another."""

import pytest

from flnl.storage.written_names import WrittenNames, collisions

COMPOSED, APART = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("a/1.jpg", 0),
        ("./a/1.jpg", 0),
        ("a\\1.jpg", 0),
        ("train/a/1.jpg", 0),
        (".\\train\\a\\1.jpg", 0),
        ("'=b/2.jpg", 1),  # marked for a spreadsheet
        ("=b/2.jpg", 1),
        (f"{COMPOSED}/3.jpg", 2),
        (f"train/{APART}/3.jpg", 2),
        ("train/train/4.jpg", 3),
        ("train/4.jpg", 4),  # as it stands, before it is taken for 4.jpg
        ("c\\5.jpg", 5),
        ("test/a/1.jpg", None),
        ("1.jpg", None),
        ("", None),
    ],
)
def test_paths(written: str, place: int | None):
    names = ["a/1.jpg", "=b/2.jpg", f"{APART}/3.jpg", "train/train/4.jpg", "train/4.jpg", "c\\5.jpg"]
    assert WrittenNames(names, below="train").find(written) == place


def test_classes_are_no_paths():
    names = WrittenNames(["a/b", COMPOSED])
    assert names.find("a\\b") is None
    assert names.find(APART) == 1


def test_two_names_that_look_equal_are_found_as_they_stand_alone():
    names = WrittenNames([COMPOSED, APART])
    assert (names.find(COMPOSED), names.find(APART)) == (0, 1)
    dots = "s\u0323\u0307", "s\u0307\u0323"  # below and above, in either order; a third spelling could mean both
    assert WrittenNames([*dots, "y"]).find("\u1e69") is None
    assert WrittenNames([*dots, "y"]).find("y") == 2
    assert list(collisions([COMPOSED, "tea", APART])) == [(COMPOSED, APART)]
