"""What the page of three hospitals says of what leaves a site is what the types say."""

from tests.sites import leaving


def test_the_table_is_that_of_the_types() -> None:
    """``python -m tests.sites.leaving`` writes it anew."""
    page = leaving.PAGE.read_text()
    assert page == leaving.written(page)


def test_what_tells_of_labels_is_in_the_last_column() -> None:
    rows = [line.split(" | ") for line in leaving.PAGE.read_text().splitlines() if line.startswith("| `")]
    (fednoro,) = (row for row in rows if "`fednoro`" in row[0])
    assert fednoro[-1] == "`ClassLosses` |"
    (fedavg,) = (row for row in rows if "`fedavg`" in row[0])
    assert [cell.strip(" |") for cell in fedavg[1:]] == ["nothing", "nothing", ""]
