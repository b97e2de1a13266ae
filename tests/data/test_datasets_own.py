"""Users' own data: image folders, label files and arrays, and every way in which they may not fit."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets.arrays import Arrays
from flnl.data.datasets.image_folder import ImageFolder
from tests.toys import of_images

CLASSES = ["ant", "bee", "cat"]


def folder_part(root: Path, **changes: Any) -> ImageFolder:
    part = ImageFolder(
        name="own",
        root=str(root),
        labels=None,
        truth="folder",
        image_size=16,
        crop_from=None,
        padding=0,
        flip=False,
        color="rgb",
        normalize="imagenet",
        in_memory="auto",
        memory_limit=1.0,
        threads=1,
        train_size=None,
        test_size=None,
    )
    return replace(part, **changes)


def save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = stream(seed, "image").integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four training and two test images in each class, one of them a level deeper."""
    for number, name in enumerate(CLASSES):
        for i in range(4):
            save(tmp_path / "train" / name / ("deep/3.png" if i == 3 else f"{i}.jpg"), 10 * number + i)
        for i in range(2):
            save(tmp_path / "test" / name / f"{i}.JPEG", 100 + 10 * number + i)
    return tmp_path


TRAIN = [f"{name}/{file}" for name in CLASSES for file in ("0.jpg", "1.jpg", "2.jpg", "deep/3.png")]


def write_labels(root: Path, rows: list[list[str]], header: str = "path,label") -> None:
    (root / "labels.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")


def refusal(part: Any) -> str:
    """The one line a part refuses with."""
    with pytest.raises(UserError) as caught:
        part()
    message = str(caught.value)
    assert message.startswith("dataset.")
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------------------ image folder


def test_folders_are_the_truth(folder: Path, caplog: pytest.LogCaptureFixture):
    (folder / "train" / "ant" / "notes.txt").write_text("no image")
    (folder / "train" / "ant" / ".hidden.jpg").write_bytes(b"no image")
    for hidden in (folder / "train" / ".thumbs", folder / "train" / "ant" / ".cache"):  # neither class nor ants
        hidden.mkdir()
        shutil.copy(folder / "train" / TRAIN[0], hidden / "0.jpg")
    data = folder_part(folder)()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{folder}/train: files without the suffix of an image are left out: 1 (.txt)"
    assert data.classes == tuple(CLASSES)
    assert data.ids == tuple(TRAIN)
    assert data.truth is not None
    assert data.truth.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.given is None
    assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.shape == (3, 16, 16)


def test_class_folders_may_be_links_and_a_link_to_a_folder_above_ends(folder: Path, tmp_path: Path):
    """Without them, a class would be missing in a run that looks right."""
    for split in ("train", "test"):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (folder / split / "bee").rename(tmp_path / "elsewhere" / split)
        (folder / split / "bee").symlink_to(tmp_path / "elsewhere" / split)
    (folder / "train" / "ant" / "again").symlink_to(folder / "train")
    data = folder_part(folder)()
    assert data.classes == tuple(CLASSES)
    assert data.ids == tuple(TRAIN)


def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    scandir = os.scandir

    def forbidden(path: Path) -> Any:
        if Path(path).name == "bee":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    assert "train/bee cannot be read (Permission denied)" in refusal(folder_part(folder))


def test_devices_and_pipes_in_folders_are_named_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture):
    """A pipe would be waited for, a device read until the memory ends. Links to images are images."""
    os.mkfifo(folder / "train" / "ant" / "pipe.png")
    (folder / "train" / "bee" / "zero.png").symlink_to("/dev/zero")
    (folder / "train" / "bee" / "gone.png").symlink_to("nowhere")
    (folder / "train" / "bee" / "folder.png").mkdir()
    (folder / "train" / "bee" / "linked.png").symlink_to((folder / "train" / TRAIN[0]).absolute())
    data = folder_part(folder)()
    assert set(data.ids or ()) - set(TRAIN) == {"bee/linked.png"}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"{folder}/train/ant/pipe.png is not a regular file and is left out, and so are 2 more"]


def test_an_image_that_a_pipe_replaced_is_black_and_named(folder: Path, caplog: pytest.LogCaptureFixture):
    """In the middle of training; a file over the limit of size, too."""
    data = folder_part(folder, in_memory=False)()
    (folder / "train" / TRAIN[0]).unlink()
    os.mkfifo(folder / "train" / TRAIN[0])
    with (folder / "train" / TRAIN[1]).open("wb") as file:
        file.truncate(257 * 2**20)
    try:
        read = data.train.read(torch.arange(3))
    finally:
        os.close(os.open(folder / "train" / TRAIN[0], os.O_RDWR | os.O_NONBLOCK))  # the other end, for who waits for it
    assert [bool(image.any()) for image in read] == [False, False, True]
    assert [record.getMessage().split("cannot be decoded ")[1].split(" and is")[0] for record in caplog.records] == [
        "(it is a device, a pipe or a socket, not a file)",
        "(it has 257 MiB; up to 256 are read)",
    ]


def test_training_refuses_pixels_without_a_range_and_reads_16_bits(folder: Path, caplog: pytest.LogCaptureFixture):
    """As prediction does: they were all black, or white."""
    wide = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(wide).save(folder / "train" / "ant" / "wide.png")
    Image.fromarray(wide.astype(np.float32)).save(folder / "train" / "ant" / "float.tiff")
    data = folder_part(folder, in_memory=True, color="grey", crop_from=None)()
    names = list(data.ids or ())
    read = data.train.read(torch.tensor([names.index("ant/wide.png"), names.index("ant/float.tiff")]))
    assert torch.equal(read[0, 0], torch.arange(256, dtype=torch.uint8).reshape(16, 16))
    assert not read[1].any()
    assert len(caplog.records) == 1
    assert f"{folder}/train/ant/float.tiff" in caplog.text
    assert "floating-point" in caplog.text


def test_folders_of_nobody_knows_what_are_given_labels(folder: Path):
    data = folder_part(folder, truth="none")()
    assert data.truth is None
    assert data.given is not None
    assert data.given.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("crop_from", [None, 20])
@pytest.mark.parametrize("color", ["rgb", "grey"])
def test_memory_or_not_is_the_same_data_set(folder: Path, crop_from: int | None, color: Any):
    parts = [
        folder_part(folder, in_memory=in_memory, memory_limit=limit, crop_from=crop_from, color=color, threads=threads)
        for in_memory, limit, threads in ((True, 0.0, 1), (False, 1.0, 1), ("auto", 1.0, 2), ("auto", 0.0, 2))
    ]
    sets = [part() for part in parts]
    assert [type(data.train).__name__ for data in sets] == ["TensorImages", "ImageFiles"] * 2
    assert len({data.fingerprint for data in sets}) == 1
    index = torch.arange(12)
    for data in sets:
        assert data.train.augmented_size == (crop_from or 16,) * 2
        assert data.test.augmented_size == (16, 16)
        for augmented in (False, True):
            assert torch.equal(
                data.train.read(index, augmented=augmented), sets[0].train.read(index, augmented=augmented)
            )
        assert torch.equal(data.test.read(torch.arange(6)), sets[0].test.read(torch.arange(6)))
        assert len(of_images(data).mean) == data.train.shape[0] == (3 if color == "rgb" else 1)


def test_a_label_file_gives_labels_truth_and_clients(folder: Path):
    rng = stream(1, "rows")
    rows = [[path, CLASSES[(i // 4 + 1) % 3], CLASSES[i % 3], f"ward {i % 2}"] for i, path in enumerate(TRAIN)]
    rows = [rows[i] for i in rng.permutation(12)]  # lines in any order
    write_labels(folder, rows, "path,label,true,client")
    data = folder_part(folder, labels="labels.csv", truth="csv")()
    assert data.given is not None
    assert data.truth is not None
    assert data.clients is not None
    assert data.given.tolist() == [1] * 4 + [2] * 4 + [0] * 4
    assert data.truth.tolist() == [0, 1, 2] * 4
    assert data.clients.tolist() == [0, 1] * 6
    assert data.client_names == ("ward 0", "ward 1")
    by_folder = folder_part(folder, labels=str(folder / "labels.csv"), truth="folder")()
    assert by_folder.truth is not None
    assert by_folder.truth.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert folder_part(folder, labels="labels.csv", truth="none")().truth is None
    part = folder_part(folder, labels="labels.csv", truth="csv", train_size=6)()
    assert part.ids is not None
    assert part.clients is not None
    positions = [TRAIN.index(path) for path in part.ids]
    assert part.clients.tolist() == [i % 2 for i in positions]
    assert np.bincount(part.labels).tolist() == [2, 2, 2]


def test_a_class_without_a_test_image_is_one_if_labels_name_it(folder: Path):
    """As where corrected labels are read for a folder whose own labels were used before."""
    shutil.rmtree(folder / "test" / "cat")
    write_labels(folder, [[path, "bee" if i == 0 else path.split("/")[0]] for i, path in enumerate(TRAIN)])
    data = folder_part(folder, labels="labels.csv", truth="none")()
    assert data.classes == folder_part(folder, truth="none")().classes == tuple(CLASSES)
    assert data.given is not None
    assert data.given.tolist() == [1, 0, 0, 0] + [1] * 4 + [2] * 4
    write_labels(folder, [[path, "bee"] for path in TRAIN])  # no label names cat
    assert folder_part(folder, labels="labels.csv", truth="none")().classes == ("ant", "bee")


def test_folders_of_sites_are_no_classes(tmp_path: Path):
    for i in range(6):
        save(tmp_path / "train" / f"{i % 2}" / f"{i}.png", i)
        save(tmp_path / "test" / CLASSES[i % 3] / f"{i}.png", 10 + i)
    write_labels(tmp_path, [[f"{i % 2}/{i}.png", str(i % 3)] for i in range(6)])  # labels by number, as the sites
    data = folder_part(tmp_path, labels="labels.csv", truth="none")()
    assert data.classes == tuple(CLASSES)
    assert data.given is not None
    assert sorted(data.given.tolist()) == [0, 0, 1, 1, 2, 2]


def test_a_flat_folder_needs_a_label_file(tmp_path: Path):
    for i in range(6):
        save(tmp_path / "train" / f"{i}.png", i)
        save(tmp_path / "test" / CLASSES[i % 3] / f"{i}.png", 10 + i)
    write_labels(tmp_path, [[f"./{i}.png", str(i % 3)] for i in range(6)])  # classes by number
    data = folder_part(tmp_path, labels="labels.csv", truth="none")()
    assert data.classes == tuple(CLASSES)
    assert data.given is not None
    assert data.given.tolist() == [0, 1, 2] * 2
    assert "0.png is in no class folder" in refusal(folder_part(tmp_path))
    assert "dataset.truth=none" in refusal(folder_part(tmp_path, labels="labels.csv", truth="folder"))


@pytest.mark.parametrize(
    ("rows", "header", "reason"),
    [
        ([[path, "ant"] for path in TRAIN[:-2]], "path,label", "no line for 2 of 12 .*'cat/2.jpg'"),
        ([[path, "ant"] for path in [*TRAIN, TRAIN[4]]], "path,label", "line 14 of .*'bee/0.jpg' has .* number 6"),
        ([["dog/0.jpg", "ant"]], "path,label", "line 2 of .*no training sample 'dog/0.jpg'"),
        ([[path, "dog"] for path in TRAIN], "path,label", r"label 'dog' is none of the classes \(ant, bee, cat\)"),
        ([[path, "ant", "3"] for path in TRAIN], "path,label,true", "true '3' is none of the classes"),
        ([[path, "ant"] for path in TRAIN], "path,class", "no column 'label'"),
        ([[path, "ant"] for path in TRAIN], "file,label", "no column 'path'"),
        ([[path] for path in TRAIN], "path,label", "line 2 of .*another number of values"),
        ([[path, "ant", "x"] for path in TRAIN], "path,label", "line 2 of .*another number of values"),
        ([[path, "ant", ""] for path in TRAIN], "path,label,client", "line 2 of .*the client is empty"),
        ([[path, "ant", "-1"] for path in TRAIN], "path,label,client", "the client is '-1'; .* at partition.path"),
        ([], "path,label", "no lines"),
        ([], "", "no column"),
    ],
)  # fmt: skip
def test_label_files_that_do_not_fit(folder: Path, rows: list[list[str]], header: str, reason: str):
    write_labels(folder, rows, header)
    with pytest.raises(UserError, match=r"^dataset\.labels: .*" + reason):
        folder_part(folder, labels="labels.csv")()


def test_messages_about_a_label_file_name_its_line(folder: Path):
    """Empty lines count, and so do all lines of a name that goes over several."""
    for lines, reason in (
        ("\nant/1.jpg,dog\n", "line 5 of .*label 'dog'"),
        ("\n\nant/0.jpg,ant\n", "line 6 of .*'ant/0.jpg' has a line already, number 3"),
        ("\n\nant/1.jpg,ant,x\n", "line 6 of .* has another number of values"),
        ('"two\nlines.jpg",ant\n', "line 4 of .* no training sample"),
    ):
        (folder / "labels.csv").write_text("path,label\n\nant/0.jpg,ant\n" + lines)
        with pytest.raises(UserError, match=reason):
            folder_part(folder, labels="labels.csv")()


def test_label_files_that_cannot_be_read(folder: Path):
    said = refusal(folder_part(folder, labels="labels.csv"))
    assert "No such file" in said
    assert said.endswith("; a relative path begins at dataset.root")
    (folder / "labels.csv").write_bytes(b"\xff\xfe\x00")
    assert "'utf-16-le' codec can't decode" in refusal(folder_part(folder, labels="labels.csv"))
    (folder / "labels.csv").write_bytes(b"path,label\nant/caf\xe9.jpg,ant\n")
    assert "encoded as UTF-8" in refusal(folder_part(folder, labels="labels.csv"))
    write_labels(folder, [[path, "ant"] for path in TRAIN])
    assert "column 'true'" in refusal(folder_part(folder, labels="labels.csv", truth="csv"))
    assert "column 'true'" in refusal(folder_part(folder, truth="csv"))


def test_numbers_are_no_labels_where_classes_are_named_by_numbers(tmp_path: Path):
    """Folders 1, 2, 3: is label 1 the first class or the second? Only the name counts."""
    for name in ("1", "2", "3"):
        save(tmp_path / "train" / name / "x.png", int(name))
        save(tmp_path / "test" / name / "x.png", int(name))
    write_labels(tmp_path, [["1/x.png", "1"], ["2/x.png", "3"], ["3/x.png", "1"]])
    given = folder_part(tmp_path, labels="labels.csv")().given
    assert given is not None
    assert given.tolist() == [0, 2, 0]
    hint = "'2' is that number: write the labels as the classes"
    for cell in ("2.0", "02"):
        write_labels(tmp_path, [["1/x.png", cell], ["2/x.png", "3"], ["3/x.png", "1"]])
        said = refusal(folder_part(tmp_path, labels="labels.csv"))
        assert said.endswith(f"label '{cell}' is none of the classes (1, 2, 3); {hint}")
    write_labels(tmp_path, [["1/x.png", "0"], ["2/x.png", "3"], ["3/x.png", "1"]])
    assert "'0' is none of the classes" in refusal(folder_part(tmp_path, labels="labels.csv"))


def test_folders_that_do_not_fit(folder: Path):
    assert f"no images below {folder / 'x' / 'train'}" in refusal(folder_part(folder / "x"))
    assert "smaller than dataset.image_size=16" in refusal(folder_part(folder, crop_from=8))
    save(folder / "test" / "dog" / "0.png", 1)
    assert "is in 'dog', which is none of the classes (ant, bee, cat)" in refusal(folder_part(folder))
    for name in ("ant", "bee"):
        (folder / "train" / name).rename(folder / f"{name} away")
    assert "one class only (cat)" in refusal(folder_part(folder))


@pytest.mark.parametrize(("crop_from", "told"), [(None, False), (18, False), (32, False), (33, True), (256, True)])
def test_crops_that_show_less_than_a_quarter_of_an_image_are_told(
    folder: Path, crop_from: int | None, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder_part(folder, crop_from=crop_from)()
    said = [record.getMessage() for record in caplog.records if "crop" in record.getMessage()]
    assert len(said) == told
    if crop_from == 256:
        assert "a random crop shows 0.39 % of a training image; for about three quarters set" in said[0]
        assert said[0].endswith("dataset.crop_from=18")


def test_unreadable_images_do_not_stop_a_run(folder: Path, caplog: pytest.LogCaptureFixture):
    (folder / "train" / "bee" / "1.jpg").write_bytes(b"no image")
    black = [not image.any() for image in folder_part(folder)().train.read(torch.arange(12))]
    assert black == [path == "bee/1.jpg" for path in TRAIN]
    assert "bee/1.jpg" in caplog.text


def test_where_no_image_can_be_read_the_data_set_is_refused(folder: Path):
    """Also where images are decoded batch by batch: such a run would train on blackness."""
    for split in ("train", "test"):
        for path in (folder / split).rglob("*.*"):
            path.write_text("version https://git-lfs.github.com/spec/v1\n")
        for in_memory in (True, False):
            reason = refusal(folder_part(folder, in_memory=in_memory))
            assert re.search(rf"none of the \d+ images below .*/{split} can be decoded", reason)
        shutil.rmtree(folder / split)
        for number, name in enumerate(CLASSES):
            save(folder / split / name / "0.jpg", number)


def test_folders_that_a_system_makes_are_left_out(folder: Path):
    for made in ("@eaDir", "ant/@eaDir/0.jpg", "#recycle", "bee/$RECYCLE.BIN", "__MACOSX"):
        save(folder / "train" / made / "thumb.jpg", 7)
    data = folder_part(folder)()
    assert data.classes == tuple(CLASSES)
    assert data.ids == tuple(TRAIN)


def test_accents_may_be_composed_otherwise(tmp_path: Path):
    """A Mac's folders, and labels from a spreadsheet elsewhere."""
    apart, composed = "cafe\u0301", "caf\u00e9"
    for i in range(4):
        save(tmp_path / "train" / (apart if i % 2 else "tea") / f"{i}.jpg", i)
        save(tmp_path / "test" / (composed if i % 2 else "tea") / f"{i}.jpg", 10 + i)
    data = folder_part(tmp_path)()
    assert data.classes == (apart, "tea")
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    rows = [[f"{composed}/1.jpg", composed], [f"{apart}/3.jpg", apart], ["tea/0.jpg", "tea"], ["tea/2.jpg", composed]]
    write_labels(tmp_path, rows)
    data = folder_part(tmp_path, labels="labels.csv", truth="none")()
    assert data.classes == (composed, "tea")
    assert data.given is not None
    assert [path[-5] for path, label in zip(data.ids or (), data.given, strict=True) if label == 0] == ["1", "3", "2"]
    save(tmp_path / "train" / composed / "5.jpg", 5)
    assert "differ only in how accents are composed" in refusal(folder_part(tmp_path))


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("path,label", "train/{0},{1}"),
        ("label;path", "{1};.\\train\\{2}"),
        ("sep=;\npath;label", "{2};{1}"),
        ("path,label,,", "{0},{1},,\n,,,"),
    ],
)
def test_label_files_of_other_systems(folder: Path, header: str, row: str):
    lines = [row.format(path, path.split("/")[0], path.replace("/", "\\")) for path in TRAIN]
    (folder / "labels.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-16")
    data = folder_part(folder, labels="labels.csv", truth="none")()
    assert data.given is not None
    assert data.given.tolist() == [0] * 4 + [1] * 4 + [2] * 4


SITES = ("east", "north clinic", "west")


def save_sites(root: Path, train: str, test: str, lacks: tuple[str, str] = ("west", "cat")) -> None:
    """Two images for training and one for testing a site and class, but for one class that one site lacks."""
    for s, site in enumerate(SITES):
        for c, name in enumerate(CLASSES):
            if (site, name) != lacks:
                for i in range(2):
                    save(root / train.format(site=site, name=name) / f"{i}.jpg", 100 * s + 10 * c + i)
            save(root / test.format(site=site, name=name) / f"{site}.jpg", 1000 + 10 * s + c)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train/{site}/{name}", "test/{name}"),
        ("train/{site}/{name}", "test/{site}/{name}"),
        ("train/{site}/{name}/2024", "test/{site}/{name}"),
        ("{site}/train/{name}", "test/{name}"),
        ("{site}/train/{name}", "{site}/test/{name}"),
    ],
)
def test_folders_of_sites_with_class_folders_are_clients(tmp_path: Path, train: str, test: str):
    save_sites(tmp_path, train, test)
    save(tmp_path / ("@eaDir/train" if "{site}/train" in train else "train/@eaDir") / "ant" / "thumb.jpg", 7)
    data = folder_part(tmp_path, truth="none")()
    assert data.classes == tuple(CLASSES)
    assert data.client_names == SITES
    assert data.clients is not None
    assert data.ids is not None
    assert [SITES[k] for k in data.clients] == [next(site for site in SITES if site in path) for path in data.ids]
    assert [CLASSES[k] for k in data.labels] == [next(c for c in CLASSES if f"/{c}/" in path) for path in data.ids]
    assert len(data.ids) == 16
    assert np.bincount(data.test_labels).tolist() == [3, 3, 3]
    assert data.train.read(torch.arange(16)).flatten(1).any(dim=1).all()
    write_labels(tmp_path, [[path, "ant"] for path in data.ids])
    labelled = folder_part(tmp_path, labels="labels.csv", truth="none")()
    assert (labelled.classes, labelled.client_names) == (data.classes, SITES)
    assert labelled.labels.tolist() == [0] * 16
    write_labels(tmp_path, [[path, "ant", "7"] for path in data.ids], "path,label,client")
    assert folder_part(tmp_path, labels="labels.csv", truth="none")().client_names == ("7",)


def test_folders_inside_classes_are_no_sites(folder: Path, tmp_path: Path):
    """What one class alone has, such as a patient; and what ``dataset.sites`` says goes before what is seen."""
    assert folder_part(folder)().clients is None  # ant/deep, bee/deep, cat/deep, and images beside them
    root = tmp_path / "patients"
    for split in ("train", "test"):
        for i, name in enumerate(CLASSES):
            save(root / split / name / f"patient {i}" / "0.jpg", i)
            save(root / split / name / f"patient {i + 3}" / "0.jpg", i)
    assert folder_part(root)().classes == tuple(CLASSES)
    assert folder_part(root, sites=True)().client_names == tuple(CLASSES)
    save_sites(tmp_path / "sites", "train/{site}/{name}", "test/{site}/{name}")
    assert folder_part(tmp_path / "sites", sites=False)().classes == SITES
    assert "train/ant/0.jpg is not in " in refusal(folder_part(folder, sites=True))


def save_paths(root: Path, *folders: str) -> None:
    """An image in each of the folders, which are written as in a shell: ``train/{east,north}/{cat,dog}``."""
    for number, folder in enumerate(path for written in folders for path in expanded(written)):
        save(root / folder / "0.jpg", number)


def expanded(written: str) -> list[str]:
    """The texts that a shell makes of one with braces."""
    first, brace, rest = written.partition("{")
    if not brace:
        return [written]
    inner, _, last = rest.partition("}")
    return [first + one + end for one in inner.split(",") for end in expanded(last)]


APART, COMPOSED = "e\u0301cole", "\u00e9cole"


@pytest.mark.parametrize(
    ("folders", "sites", "classes"),
    [
        (["train/{e,n}/{cat,dog}", "train/e/ship", "test/{cat,dog}"], "e n", "cat dog ship"),  # none of ship in test
        (["train/{e,n}/{cat,dog}", "test/{e,n,w}/{cat,dog}"], "e n", "cat dog"),  # a site in test alone
        (["train/{e,n}/{cat,dog}", "test/e/{cat,dog}"], "e n", "cat dog"),
        (["train/e/{cat,dog}", "test/e/{cat,dog}"], "e", "cat dog"),
        ([f"train/{{{COMPOSED},n}}/{{cat,dog}}", f"test/{{{APART},n}}/{{cat,dog}}"], f"n {COMPOSED}", "cat dog"),
        ([f"train/{{e,n}}/{{{COMPOSED},dog}}", f"test/{{{APART},dog}}"], "e n", f"dog {COMPOSED}"),
        ([f"train/e/{{{COMPOSED},x}}", f"train/n/{{{APART},x}}", f"test/{{{APART},x}}"], "e n", f"x {COMPOSED}"),
        ([f"train/e/{{{COMPOSED},x}}", f"{{train,test}}/n/{{{APART},x}}"], "e n", f"x {COMPOSED}"),
        (["{e,n}/train/{cat,dog}", "e/test/{cat,dog}"], "e n", "cat dog"),  # only one site has photos for testing
        (["{e,n}/train/{cat,dog}", "w/test/{cat,dog}"], "e n", "cat dog"),
        (["{e,n}/train/{cat,dog}", "test/{e,n}/{cat,dog}"], "e n", "cat dog"),
    ],
)  # fmt: skip
def test_sites_are_told_from_classes(tmp_path: Path, folders: list[str], sites: str, classes: str):
    save_paths(tmp_path, *folders)
    data = folder_part(tmp_path)()
    assert (data.client_names, data.classes) == (tuple(sites.split()), tuple(classes.split()))
    tests = [path for written in folders for path in expanded(written) if "test" in path.split("/")]
    assert len(data.test_labels) == len(tests)


@pytest.mark.parametrize(
    ("folders", "reason", "then"),
    [
        (["{train,test}/e/ship"], "ship is only in e", None),
        (
            ["test/e/ship"],
            "ship is only in .*/test",
            r"test/e/ship/0.jpg is in 'ship', which is none of .* \(cat, dog\)",
        ),
        (["train/e"], ".*train/e/0.jpg is in none", "train/e/0.jpg is not in .*/train/SITE/CLASS; move it"),
        (["test/e"], ".*test/e/0.jpg is in none", "test/e/0.jpg is not in .*/test/SITE/CLASS; move it"),
    ],
)
def test_names_that_do_not_tell_sites_from_classes_are_a_question(
    tmp_path: Path, folders: list[str], reason: str, then: str | None
):
    save_paths(tmp_path, "{train,test}/{e,n}/{cat,dog}", *folders)
    asked = refusal(folder_part(tmp_path))
    assert re.match(r"dataset\.sites=auto: e, n in .*/train may be sites, and folders in them ", asked)
    assert re.search(f", but {reason}: set dataset.sites=true if they are sites, or false", asked)
    assert folder_part(tmp_path, sites=False)().classes == ("e", "n")
    if then is None:
        assert folder_part(tmp_path, sites=True)().client_names == ("e", "n")
    else:
        assert re.search(then, refusal(folder_part(tmp_path, sites=True)))


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (["train/a1/{x,y}", "{train,test}/{x,y}"], r"train/a1 has folders that are named as classes \(x, y\)"),
        (["train/a1/x", "{train,test}/{x,y}"], r"train/a1 has folders that are named as classes \(x\)"),
        (["{train,test}/a1/{x,y}", "{train,test}/{x,y}"], r"train/a1 has .* \(x, y\)"),
        (["train/a{1,2}/{x,y}", "train/x", "test/{x,y}"], r"train/a1 has .* \(x, y\)"),
    ],
)
def test_a_site_beside_classes_is_no_class_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folders: list[str], reason: str
):
    save_paths(tmp_path, *folders)
    assert re.search(rf"^dataset\.sites=auto: .*{reason}", refusal(folder_part(tmp_path)))
    if "y" in {path.name for path in (tmp_path / "train").iterdir()}:
        assert folder_part(tmp_path, sites=False)().classes == ("a1", "x", "y")
        tested = (tmp_path / "test" / "a1").exists()
        told = ["dataset.name=own: no test sample is of a1, which the test accuracy leaves out"]
        assert caplog.messages == [] if tested else told


def test_where_a_file_gives_the_labels_any_folders_may_be_beside_each_other(tmp_path: Path):
    save_paths(tmp_path, "train/a1/{x,y}", "{train,test}/{x,y}")
    write_labels(tmp_path, [[path, "x"] for path in ("a1/x/0.jpg", "a1/y/0.jpg", "x/0.jpg", "y/0.jpg")])
    assert folder_part(tmp_path, labels="labels.csv", truth="none")().classes == ("x", "y")
    save_paths(tmp_path, "test/a1/{x,y}")  # where the classes are from
    assert "test/a1 has folders" in refusal(folder_part(tmp_path, labels="labels.csv", truth="none"))


def test_a_class_without_samples_is_named(folder: Path, caplog: pytest.LogCaptureFixture):
    shutil.rmtree(folder / "test" / "cat")
    folder_part(folder)()
    assert caplog.messages == ["dataset.name=own: no test sample is of cat, which the test accuracy leaves out"]
    caplog.clear()
    save(folder / "test" / "cat" / "0.jpg", 1)
    write_labels(folder, [[path, "bee"] for path in TRAIN])
    folder_part(folder, labels="labels.csv", truth="none")()
    assert caplog.messages == ["dataset.name=own: no training sample is of ant, cat, which models cannot learn"]


def test_how_ambiguous_folders_are_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_paths(tmp_path / "sites", "{train,test}/{e,n}/{cat,dog}")
    folder_part(tmp_path / "sites")()
    assert len(caplog.messages) == 1
    assert re.search(r"e, n are read as sites, .* \(cat, dog\) as classes; dataset.sites=false", caplog.messages[0])
    caplog.clear()
    save_paths(tmp_path / "own", "{train,test}/e/{cat,dog}", "{train,test}/n/{ship,car}")
    assert folder_part(tmp_path / "own")().classes == ("e", "n")
    assert len(caplog.messages) == 1
    assert re.search("e, n are read as classes, .* dataset.sites=true if they are sites", caplog.messages[0])
    caplog.clear()
    save_paths(tmp_path / "patients", "{train,test}/{cat,dog}", "train/{cat,dog}/{1,2}", "test/{cat,dog}/3")
    save_paths(tmp_path / "hospital", "train/{e,n}/{cat,dog}", "test/{cat,dog}")
    for name in ("patients", "hospital"):
        folder_part(tmp_path / name)()
    folder_part(tmp_path / "sites", sites=True)()
    assert caplog.messages == []


@pytest.mark.parametrize("site", ["-1", "1_0", "+2", "NaN"])
def test_a_site_whose_folder_is_no_name_is_refused(tmp_path: Path, site: str):
    save_paths(tmp_path, f"train/{{e,{site}}}/{{cat,dog}}", "test/{cat,dog}")
    assert re.search(f"the client is '{re.escape(site)}'.*: rename the folder", refusal(folder_part(tmp_path)))


@pytest.mark.parametrize(("one", "other"), [("X", "x"), ("x", "x ")])
def test_classes_of_sites_that_look_alike_are_refused(tmp_path: Path, one: str, other: str):
    save_paths(tmp_path, f"train/e/{{{one},y}}", f"train/n/{{{other},y}}", f"test/{{{one},y}}")
    refused = refusal(folder_part(tmp_path))
    assert re.search(rf"folders '{one}' in .*train/e and '{other}' in .*train/n differ only in case or blanks", refused)
    save(tmp_path / "train" / "n" / one / "0.jpg", 1)  # beside the other: they are two
    assert folder_part(tmp_path)().num_classes == 3


def test_a_test_folder_that_is_no_class_is_refused_with_what_helps(tmp_path: Path):
    save_paths(tmp_path, "train/{e,n}/{cat,dog}", "test/{w,s}/{cat,dog}")  # all from sites that do not train
    assert "if those of train are sites, set dataset.sites=true" in refusal(folder_part(tmp_path))
    assert folder_part(tmp_path, sites=True)().client_names == ("e", "n")
    save_paths(tmp_path / "more", "train/{e,n}/{cat,dog}", "test/{cat,dog,bird}")
    refused = refusal(folder_part(tmp_path / "more"))
    assert "test/bird/0.jpg is in 'bird', which is none of the classes (cat, dog): the images of test are" in refused
    save_paths(tmp_path / "flat", "train/{cat,dog}", "test/{cat,dog,bird}")
    assert refusal(folder_part(tmp_path / "flat")).endswith("train and test need the same folders")


def test_photos_for_testing_at_sites_beside_those_of_all_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_paths(tmp_path, "{e,n}/train/{cat,dog}", "{test,e/test}/{cat,dog}")
    assert len(folder_part(tmp_path)().test_labels) == 2
    assert caplog.messages == [f"{tmp_path / 'test'} and {tmp_path / 'e/test'} are both there: only the first is read"]


# ------------------------------------------------------------------------------------------------------------ arrays


def arrays_part(root: Path, **changes: Any) -> Arrays:
    part = Arrays(
        name="own",
        root=str(root),
        file="arrays.npz",
        labels=None,
        truth="y_train",
        layout="auto",
        shape=None,
        normalize="train",
        padding=0,
        flip=False,
        train_size=None,
        test_size=None,
    )
    return replace(part, **changes)


def content(**changes: Any) -> dict[str, Any]:
    """Twelve training and six test images of 8x10, three classes."""
    rng = stream(1, "arrays")
    plain: dict[str, Any] = {
        "x_train": rng.integers(0, 256, (12, 8, 10), dtype=np.uint8),
        "y_train": np.arange(12) % 3,
        "x_test": rng.integers(0, 256, (6, 8, 10), dtype=np.uint8),
        "y_test": np.arange(6, dtype=np.uint8) % 3,
    }
    return {name: value for name, value in (plain | changes).items() if value is not None}


def write(root: Path, **changes: Any) -> None:
    np.savez(root / "arrays.npz", **content(**changes))


def test_arrays_are_stored_exactly(tmp_path: Path):
    write(tmp_path)
    data = arrays_part(tmp_path)()
    assert data.train.shape == (1, 8, 10)
    assert np.array_equal(data.train.read(torch.arange(12))[:, 0].numpy(), content()["x_train"])
    assert data.truth is not None
    assert data.truth.tolist() == [0, 1, 2] * 4
    assert data.test_labels.dtype == np.int64
    assert (data.given, data.clients, data.classes) == (None, None, ("0", "1", "2"))


@pytest.mark.parametrize(
    ("stored", "changes", "shape"),
    [
        ((8, 10), {}, (1, 8, 10)),
        ((8, 10, 3), {}, (3, 8, 10)),
        ((3, 8, 10), {}, (3, 8, 10)),
        ((8, 10, 1), {}, (1, 8, 10)),
        ((3, 8, 3), {"layout": "NHWC"}, (3, 3, 8)),
        ((3, 8, 3), {"layout": "NCHW"}, (3, 8, 3)),
        ((4, 8, 10), {"layout": "NCHW"}, (4, 8, 10)),
        ((240,), {"shape": [3, 8, 10]}, (3, 8, 10)),
        ((240,), {"shape": [1, 1, 240]}, (1, 1, 240)),
    ],
)
def test_where_the_channels_are(tmp_path: Path, stored: tuple[int, ...], changes: Any, shape: tuple[int, ...]):
    """Taking rows for channels gives the right shape and the wrong picture."""
    rng = stream(1, "channels")
    images = rng.integers(0, 256, (12, *stored), dtype=np.uint8)
    write(tmp_path, x_train=images, x_test=images[:6])
    data = arrays_part(tmp_path, **changes)()
    assert data.train.shape == shape
    channels_last = len(stored) == 3 and changes.get("layout", "NHWC" if stored[2] in {1, 3} else "") == "NHWC"
    expected = images.transpose(0, 3, 1, 2) if channels_last else images.reshape(12, *shape)
    assert np.array_equal(data.train.read(torch.arange(12)).numpy(), expected)


def test_training_inputs_are_standardised_a_channel(tmp_path: Path):
    rng = stream(1, "floats")
    for images in (
        rng.normal(3.0, 5.0, (12, 3, 8, 9)) * np.array([1, 10, 100])[:, None, None],
        rng.integers(0, 256, (12, 3, 8, 9), dtype=np.uint8),
        rng.integers(0, 1000, (12, 3, 8, 9)),
    ):
        write(tmp_path, x_train=images, x_test=images[:6])
        data = arrays_part(tmp_path)()
        inputs = data.transform.normalize(data.train.read(torch.arange(12)), torch.float64)
        torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(inputs.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-6, rtol=0)


def test_other_normalisations(tmp_path: Path):
    write(tmp_path)
    images = torch.from_numpy(content()["x_train"])[:, None]
    for normalize, expected in (("none", images / 255), ("half", images / 127.5 - 1)):
        transform = arrays_part(tmp_path, normalize=normalize)().transform
        torch.testing.assert_close(transform.normalize(images), expected)
    constant = np.full((12, 8, 10), 7.0)
    write(tmp_path, x_train=constant, x_test=constant[:6])
    data = arrays_part(tmp_path)()
    assert not data.transform.normalize(data.train.read(torch.arange(12))).any()


def test_given_labels_clients_and_names(tmp_path: Path):
    write(
        tmp_path,
        y_given=np.arange(12) % 2,
        clients=np.array([7, 7, 30] * 4),
        classes=np.array(CLASSES),
    )
    data = arrays_part(tmp_path)()
    assert data.given is not None
    assert data.truth is not None
    assert data.clients is not None
    assert data.given.tolist() == [0, 1] * 6
    assert data.truth.tolist() == [0, 1, 2] * 4
    assert data.clients.tolist() == [0, 0, 1] * 4
    assert data.client_names == ("7", "30")
    assert data.classes == tuple(CLASSES)
    assert arrays_part(tmp_path, truth="none")().truth is None
    write(tmp_path, y_given=np.arange(12) % 2, y_train=None)
    assert arrays_part(tmp_path, truth="none")().labels.tolist() == [0, 1] * 6
    assert "dataset.truth=none" in refusal(arrays_part(tmp_path))


def test_names_may_be_bytes(tmp_path: Path):
    """As numpy has them from text columns of other programs."""
    owners = np.array([b"east", b"west"])[np.arange(12) % 2]
    write(tmp_path, classes=np.array(["\u00e0nt".encode(), b"bee", b"cat"]), clients=owners)
    data = arrays_part(tmp_path)()
    assert data.classes == ("\u00e0nt", "bee", "cat")
    assert data.client_names == ("east", "west")
    write(tmp_path, classes=np.array([b"\xe0nt", b"bee", b"cat"]))
    assert "not encoded as UTF-8" in refusal(arrays_part(tmp_path))


def test_labels_that_nobody_vouches_for_are_given(tmp_path: Path):
    write(tmp_path)
    data = arrays_part(tmp_path, truth="none")()
    assert data.truth is None
    assert data.given is not None
    assert data.given.tolist() == [0, 1, 2] * 4


def test_a_class_without_a_sample_needs_a_name(tmp_path: Path):
    without = {"y_train": np.arange(12) % 2 * 2, "y_test": np.arange(6) % 2 * 2}
    write(tmp_path, **without)
    assert "has a label 2 and no 1" in refusal(arrays_part(tmp_path))
    write(tmp_path, **without, classes=np.array(CLASSES))
    assert arrays_part(tmp_path)().classes == tuple(CLASSES)
    write(tmp_path, y_train=np.arange(12) % 2 * 2)
    assert arrays_part(tmp_path)().classes == ("0", "1", "2"), "the test set has it"
    write(tmp_path, y_train=None, y_test=np.arange(6) % 2 * 2)
    write_labels(tmp_path, [[str(i), str(i % 3)] for i in range(12)], "id,label")
    data = arrays_part(tmp_path, labels="labels.csv", truth="none")()
    assert (data.classes, data.labels.tolist()) == (("0", "1", "2"), [0, 1, 2] * 4), "the label file has it"


def test_a_label_file_for_arrays(tmp_path: Path):
    write(tmp_path, classes=np.array(CLASSES))
    rows = [[str(i), CLASSES[0], CLASSES[2], str(i % 4)] for i in reversed(range(12))]
    write_labels(tmp_path, rows, "id,label,true,client")
    data = arrays_part(tmp_path, labels="labels.csv", truth="csv")()
    assert data.given is not None
    assert data.truth is not None
    assert data.clients is not None
    assert (data.given.tolist(), data.truth.tolist()) == ([0] * 12, [2] * 12)
    assert data.clients.tolist() == [0, 1, 2, 3] * 3


def test_a_label_file_goes_before_the_given_labels_and_clients_of_arrays(tmp_path: Path):
    write(tmp_path, classes=np.array(CLASSES), y_given=np.ones(12, int), clients=np.arange(12) % 2)
    write_labels(tmp_path, [[str(i), "cat", str(i % 4)] for i in range(12)], "id,label,client")
    data = arrays_part(tmp_path, labels="labels.csv", truth="none")()
    assert data.given is not None
    assert data.clients is not None
    assert (data.given.tolist(), data.clients.tolist()) == ([2] * 12, [0, 1, 2, 3] * 3)
    write_labels(tmp_path, [[str(i), "cat"] for i in range(12)], "id,label")
    without = arrays_part(tmp_path, labels="labels.csv", truth="none")()
    assert without.given is not None
    assert without.clients is not None
    assert (without.given.tolist(), without.clients.tolist()) == ([2] * 12, [0, 1] * 6), "it says nothing of clients"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x_train": None}, "no array 'x_train'"),
        ({"y_test": None}, "no array 'y_test'"),
        ({"x_train": np.full((12, 8, 10), np.nan)}, "x_train of .* not finite"),
        ({"x_test": np.full((6, 8, 10), np.inf)}, "x_test of .* not finite"),
        ({"x_train": np.full((12, 8, 10), 1e300)}, "not finite as float32"),
        ({"x_train": np.zeros((12, 8, 10))}, "float32 .* and uint8 .*must agree"),
        ({"x_train": np.zeros((12, 8, 9), np.uint8)}, "must agree"),
        ({"x_train": np.zeros((12, 8, 10), complex)}, "complex128, which are not numbers"),
        ({"x_train": np.zeros((12, 80), np.uint8)}, "=None: .*80 values"),
        ({"x_train": np.zeros((12, 3, 8, 3), np.uint8)}, "set NHWC or NCHW"),
        ({"x_train": np.zeros((12, 8, 9, 5), np.uint8)}, "set NHWC or NCHW"),
        ({"x_train": np.zeros(12, np.uint8)}, "has shape"),
        ({"x_train": np.zeros((0, 8, 10), np.uint8)}, "is empty"),
        ({"y_train": np.arange(11) % 3}, r"y_train of .* it should be 12 whole numbers"),
        ({"y_test": np.zeros((6, 1), int)}, r"y_test of .* it should be 6 whole numbers"),
        ({"y_train": np.zeros(12)}, "y_train of .* float64"),
        ({"y_train": np.arange(12.0) % 3, "y_test": np.arange(6.0) % 3}, "y_train of .* float64 .* whole numbers"),
        ({"y_train": np.arange(12) % 3 - 1}, r"y_train\[0\] of .* is -1; labels should be 0\.\.2"),
        ({"y_train": np.arange(12) % 3 + 1, "y_test": np.arange(6) % 3 + 1}, "has a label 3 and no 0; .*without gaps"),
        ({"y_given": np.arange(12) % 2 * 4}, "has a label 4 and no 3; .* have names: an array 'classes'"),
        ({"y_given": np.arange(12) % 5, "classes": np.array(CLASSES)}, r"y_given\[3\] of .* is 3; .* 0\.\.2"),
        ({"classes": np.array(["ant", "ant", "bee"])}, "same name"),
        ({"classes": np.array(["ant"])}, "has 1 class"),
        ({"clients": np.zeros(11, int)}, "clients of .* 12 names or numbers"),
        ({"clients": np.full(12, -1)}, "clients of .* numbers from 0"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(tmp_path: Path, changes: Any, reason: str):
    write(tmp_path, **changes)
    with pytest.raises(UserError, match=r"^dataset\.(file|shape|layout)(?=[:=])[^\n]*" + reason):
        arrays_part(tmp_path)()


def test_a_shape_that_does_not_fit_flat_inputs(tmp_path: Path):
    write(tmp_path, x_train=np.zeros((12, 80), np.uint8), x_test=np.zeros((6, 80), np.uint8))
    assert "80 values" in refusal(arrays_part(tmp_path, shape=[1, 9, 9]))
    assert "80 values" in refusal(arrays_part(tmp_path, shape=[8, 10]))


def test_files_that_are_no_plain_arrays(tmp_path: Path):
    assert re.search("does not exist; .*; a relative path begins at dataset.root$", refusal(arrays_part(tmp_path)))
    for broken in (b"", b"no arrays", b"PK\x03\x04 cut off"):
        (tmp_path / "arrays.npz").write_bytes(broken)
        assert "cannot be read" in refusal(arrays_part(tmp_path))
    write(tmp_path, x_train=np.array([{"a": "pickle"}] * 12, dtype=object))
    assert "pickle" in refusal(arrays_part(tmp_path))
    with (tmp_path / "arrays.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert "single array" in refusal(arrays_part(tmp_path))


def test_images_of_sites_beside_those_of_everybody_are_not_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_sites(tmp_path, "{site}/train/{name}", "test/{name}")
    for name in CLASSES:
        save(tmp_path / "train" / name / "own.png", 1)
    assert folder_part(tmp_path, sites=False)().client_names is None
    assert not caplog.messages
    assert folder_part(tmp_path)().client_names is None
    assert caplog.messages == [
        f"{tmp_path / 'train'} and {tmp_path / SITES[0] / 'train'} are both there: only the first is read"
    ]
