"""Pages whose numbers come from records are what their templates make of today's records."""

from pathlib import Path

import pytest

from bench import pages


@pytest.mark.parametrize("name", sorted(path.stem for path in pages.TEMPLATES.glob("*.md.j2")))
def test_a_page_has_the_numbers_of_its_records(name: str) -> None:
    """``python -m bench.pages`` writes it again; if a claim does not hold any more, its words must change."""
    assert (pages.DOCS / name).read_text() == pages.page(f"{name}.j2")


def test_the_page_of_the_benchmark_is_what_its_entries_make_of_it() -> None:
    """``flnl benchmark render`` writes it again."""
    page = pages.benchmarked()
    assert (page.folder / "README.md").read_text() == page.markdown()


def test_a_claim_that_its_records_contradict_makes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    claim = "{{ lead(column('fedcorr_2', 'ρ=0.6 τ=0.5'), 'FedCorr') %s 0 }}"
    for sign, holds in ((">", True), ("<", False)):
        (tmp_path / "page.md.j2").write_text("FedCorr is ahead{{ sure(" + (claim % sign)[3:-3] + ") }}.")
        if holds:
            assert pages.page("page.md.j2") == "FedCorr is ahead."
        else:
            with pytest.raises(pages.ContradictedError):
                pages.page("page.md.j2")


def test_a_misspelt_cell_is_no_empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    (tmp_path / "page.md.j2").write_text("{{ column('fedcorr_2', 'ρ=0.65 τ=0.5') }}")
    with pytest.raises(KeyError, match=r"lenet/fedcorr_2 has no ours in ρ=0.65"):
        pages.page("page.md.j2")


def test_of_columns_that_are_one_here_the_papers_first_is_shown() -> None:
    """FedPeer's CIFAR-10 and CIFAR-100 have the same runs at this scale."""
    theirs = pages.column("fedpeer_1", "CIFAR-10/CIFAR-100 · random η=0.4", what="paper")
    assert theirs == {**pages.printed("fedpeer_1", "CIFAR-10 · random η=0.4")}


def test_feddivs_baselines_are_fedcorrs_numbers() -> None:
    for rho in ("0.6", "0.8"):
        ours, copied = (pages.printed(name, f"ρ={rho} τ=0.5") for name in ("fedcorr_2", "feddiv_1"))
        both = {method for method in ours if method in copied}
        assert len(both) > 4
        assert all(ours[method] == copied[method] for method in both)


def test_others_are_the_rows_with_a_rate_of_their_own() -> None:
    assert pages.others("feddiv_2", "p=0.7 α=10") == "JointOpt 0.03"


def test_the_seeds_of_the_audits_are_apart_by_the_range_of_a_methods_accuracies() -> None:
    """FedAvg under FedES's noise has 46.7, 46.15 and 52.25 %; FedCorr is 7.6, 5.3 and 2.7 points ahead of it there."""
    accuracies, distances = pages.seeds_apart()
    assert accuracies == pytest.approx(6.1)
    assert distances == pytest.approx(4.9)


def test_cells_whose_best_accuracy_is_of_a_warm_up_are_counted_by_their_runs() -> None:
    """FedCorr's Table 4 and FedDiv's Table 2 share DivideMix's runs."""
    assert len(pages.warmed("DivideMix")) == 4
    assert pages.warmed("FedAvg") == set()


@pytest.mark.parametrize("table", ["reasons_fedpeer", "reasons_gce_elr", "reasons_rofl", "reasons_fedes"])
def test_a_page_rounds_a_number_as_its_table_does(table: str) -> None:
    """39.025 % is 39.03 in the table, by its last bits, which the table's CSV file does not have."""
    shown = (pages.RESULTS / "lenet" / f"{table}.md").read_text().replace("*", "").splitlines()
    for label in pages.columns(table):
        for row, number in pages.column(table, label).items():
            (line,) = (one for one in shown if one.startswith(f"| {row} |"))
            assert f"{number:.2f}" in line, (label, row)
