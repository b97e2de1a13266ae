"""CSV files as spreadsheets and programs write them."""

import csv
from pathlib import Path

import pytest

from flnl.storage.csv_lines import CsvLines, LineLengthError, opened

WANTED = [(2, {"path": "a.jpg", "label": "ant"}), (3, {"path": "b.jpg", "label": "bee"})]


def lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    with opened(path) as file:
        return list(CsvLines(file))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_separators_and_ends_of_lines(tmp_path: Path, encoding: str, separator: str, end: str):
    rows = ("path", "label"), ("a.jpg", "ant"), ("b.jpg", "bee")
    text = "".join(separator.join(row) + end for row in rows)
    (tmp_path / "file.csv").write_bytes(text.encode(encoding))
    assert lines(tmp_path / "file.csv") == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "path,label,,\na.jpg,ant,,\nb.jpg,bee,,\n,,,\n ,,,\n",
        "path,label\na.jpg,ant,\nb.jpg,bee, ,\n",  # blanks behind the last value
        "path,label,\na.jpg,ant\nb.jpg,bee,seen twice\n",  # a remark in a column without a name
        " path , label\na.jpg,ant\nb.jpg,bee\n",  # blanks around the names of columns
    ],
)
def test_empty_cells_at_the_end_are_no_values(tmp_path: Path, text: str):
    (tmp_path / "file.csv").write_text(text)
    assert lines(tmp_path / "file.csv") == WANTED


@pytest.mark.parametrize("first", ["sep=;\n", "SEP=;\r\n"])
def test_a_line_may_say_what_separates(tmp_path: Path, first: str):
    """Values may then have commas. Lines count as an editor counts them."""
    (tmp_path / "file.csv").write_bytes(f"{first}path;label\na,1.jpg;ant\n".encode())
    assert lines(tmp_path / "file.csv") == [(3, {"path": "a,1.jpg", "label": "ant"})]


@pytest.mark.parametrize("row", ["a.jpg", "a.jpg,ant,bee"])
def test_a_line_of_another_length_is_named(tmp_path: Path, row: str):
    (tmp_path / "file.csv").write_text(f"path,label\n\n{row}\n")
    with pytest.raises(LineLengthError, match="line 3 has"):
        lines(tmp_path / "file.csv")


def test_what_is_no_csv(tmp_path: Path):
    with pytest.raises(OSError, match="device, a pipe or a socket"):
        opened(Path("/dev/zero"))
    (tmp_path / "file.csv").write_text("path,label,path\n")
    with pytest.raises(csv.Error, match="the column 'path' twice"):
        lines(tmp_path / "file.csv")
    (tmp_path / "file.csv").write_bytes(b"path,label\ncaf\xe9.jpg,ant\n")  # a name in bytes of its own
    assert lines(tmp_path / "file.csv")[0][1]["path"] == "caf\udce9.jpg"
