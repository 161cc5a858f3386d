"""Every data set that tasks are made of.

data_set("mnist").here()        # a path, or None
"""

from __future__ import annotations

import difflib
from pathlib import Path

from farfield.errors import UserError
from farfield.tasks.data_folder.data_set import DataSet, HubRepository, RemoteFile, array_data, image_data
from farfield.tasks.data_folder.recognition import columns_checked, either, folder_with, named, rows_of, table_with
from farfield.tasks.data_sets import eicu, heart_disease, tcga_brca
from farfield.tasks.data_sets.image_sets import PUBLIC, SURF, SURF_FILES, read_surf


class UnknownDataSet(UserError):
    """No data set has this name."""


def names() -> tuple[str, ...]:
    return tuple(CATALOGUE)


def data_set(name: str) -> DataSet:
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), CATALOGUE, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(CATALOGUE)}"
    raise UnknownDataSet(f"unknown data set '{name}'; {hint}")


def _surf_checked(path: Path) -> None:
    read_surf(path)


_RESEARCH = "for research; no licence is stated"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_SETS = (
    array_data(
        "mnist",
        "handwritten digits, 28x28 grey",
        terms="usually quoted as CC BY-SA 3.0",
        get="farfield data fetch mnist, or the four idx files",
        folder=folder_with(
            "train-images-idx3-ubyte.gz|train-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz|t10k-labels-idx1-ubyte"
        ),
        fetch=(
            RemoteFile(
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
                "sha256:731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
            ),
        ),
    ),
    array_data(
        "emnist",
        "handwritten digits of EMNIST's split 'mnist', 28x28 grey",
        terms="no licence is stated; cite Cohen et al. 2017",
        get="farfield data fetch emnist, or the idx files emnist-mnist-*",
        folder=folder_with("emnist-mnist-train-images-idx3-ubyte.gz|emnist-mnist-train-images-idx3-ubyte"),
        fetch=(
            RemoteFile(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                "zip",
                "*emnist-mnist-*.gz",
            ),
        ),
    ),
    array_data(
        "usps",
        "digits from envelopes, 16x16 grey",
        terms=_RESEARCH,
        get="farfield data fetch usps (hub: flwrlabs/usps)",
        fetch=HubRepository("flwrlabs/usps", "npz"),
    ),
    array_data(
        "mnist-m",
        "MNIST blended over photographs, 32x32 colour",
        terms=_RESEARCH,
        get="by hand, from the authors of DANN (Ganin et al., 2016); save it as mnist_m.npz",
    ),
    array_data(
        "svhn",
        "house numbers, 32x32 colour",
        terms="non-commercial use only",
        get="farfield data fetch svhn, or train_32x32.mat and test_32x32.mat",
        folder=folder_with("train_32x32.mat", "test_32x32.mat"),
        fetch=(
            RemoteFile(f"{_SVHN}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            RemoteFile(f"{_SVHN}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    array_data(
        "synth-digits",
        "digits drawn with fonts, 32x32 colour",
        terms=_RESEARCH,
        get="by hand, from the authors of DANN (Ganin and Lempitsky, 2015): synth_{train,test}_32x32.mat",
        folder=folder_with("synth_train_32x32.mat", "synth_test_32x32.mat"),
    ),
    array_data(
        "cifar10",
        "photographs of ten kinds of things, 32x32 colour",
        terms="no licence is stated; cite Krizhevsky 2009",
        get="farfield data fetch cifar10 (the binary version; the Python version is pickles and is not read)",
        folder=folder_with("data_batch_1.bin", "test_batch.bin"),
        fetch=(RemoteFile(f"{_CIFAR}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", "tar", "*.bin"),),
    ),
    array_data(
        "cifar100",
        "photographs of a hundred kinds of things, 32x32 colour",
        terms="no licence is stated; cite Krizhevsky 2009",
        get="farfield data fetch cifar100 (the binary version; the Python version is pickles and is not read)",
        folder=folder_with("train.bin", "test.bin"),
        fetch=(
            RemoteFile(f"{_CIFAR}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", "tar", "*.bin"),
        ),
    ),
    image_data(
        PUBLIC["pacs"],
        terms=_RESEARCH,
        get="farfield data fetch pacs (hub: flwrlabs/pacs)",
        fetch=HubRepository("flwrlabs/pacs", "folder"),
    ),
    image_data(
        PUBLIC["vlcs"],
        terms=_RESEARCH,
        get="by hand: the folder VLCS in DomainBed's layout",
    ),
    image_data(
        PUBLIC["office-home"],
        terms="non-commercial research and teaching only",
        get="farfield data fetch office-home (hub: flwrlabs/office-home)",
        fetch=HubRepository("flwrlabs/office-home", "folder"),
    ),
    image_data(
        PUBLIC["office-caltech10"],
        terms=_RESEARCH,
        get="by hand: folders amazon, caltech, dslr, webcam",
    ),
    DataSet(
        "office-caltech10-surf",
        "the same as SURF features, a bag of 800 words",
        SURF,
        _RESEARCH,
        "by hand: amazon_SURF_L10.mat, Caltech10_SURF_L10.mat, dslr_SURF_L10.mat and webcam_SURF_L10.mat in one folder",
        either(named(SURF[0]), folder_with(*map("|".join, SURF_FILES.values()))),
        PUBLIC["office-caltech10"].counts,
        lambda path: read_surf(path).counts,
        check=_surf_checked,
    ),
    image_data(
        PUBLIC["domainnet"],
        terms="fair use for research; see its page",
        get="farfield data fetch domainnet (hub: wltjr1007/DomainNet, 18.5 GB)",
        fetch=HubRepository("wltjr1007/DomainNet", "folder"),
    ),
    DataSet(
        "camelyon17",
        "tissue patches of five hospitals (WILDS)",
        ("camelyon17_v1.0", "camelyon17"),
        "CC0 1.0",
        "by hand: wilds.get_dataset('camelyon17', download=True), then import its folder",
        folder_with("metadata.csv", "patches"),
        {"metadata": 455_954},
        rows_of("metadata"),
    ),
    DataSet(
        "iwildcam",
        "animals before camera traps (WILDS)",
        ("iwildcam_v2.0", "iwildcam"),
        "Community Data License Agreement, permissive",
        "by hand: wilds.get_dataset('iwildcam', download=True), then import its folder",
        folder_with("metadata.csv", "train", "categories.csv"),
        {"metadata": 203_029},
        rows_of("metadata"),
    ),
    DataSet(
        "celeba",
        "faces, hair colour and sex (WILDS)",
        ("celebA_v1.0", "celeba", "celebA", "CelebA"),
        "non-commercial research only",
        "by hand: wilds.get_dataset('celebA', download=True), then import its folder",
        folder_with("list_attr_celeba.csv", "img_align_celeba"),
        {"list_attr_celeba": 202_599},
        rows_of("list_attr_celeba"),
    ),
    DataSet(
        "eicu",
        "intensive-care stays of many hospitals",
        eicu.FOLDERS,
        "full: PhysioNet credentialed use; demo: ODbL 1.0",
        "by hand from PhysioNet: the tables patient and medication, of the full or the demo release",
        folder_with("patient.csv|patient.csv.gz", "medication.csv|medication.csv.gz"),
        {"patient": 200_859},
        rows_of("patient"),
    ),
    DataSet(
        "eicu-mortality",
        "day-1 measurements of the demo's stays in intensive care, joined in one table",
        (eicu.MORTALITY,),
        "ODbL 1.0",
        "not needed where eicu is here with the tables apacheApsVar, apachePredVar and hospital: the task joins them",
        named(eicu.MORTALITY),
        {"rows": 2_205},
        rows_of(),
        check=columns_checked("eicu-mortality", *eicu.MORTALITY_COLUMNS),
    ),
    DataSet(
        "heart-disease",
        "patients of four hospitals (UCI)",
        heart_disease.PLACES,
        "CC BY 4.0; cite the investigators",
        "farfield data fetch heart-disease, or the files processed.*.data of UCI in one folder",
        either(
            named(heart_disease.PLACES[0]), table_with(*heart_disease.COLUMNS), folder_with(*heart_disease.PROCESSED)
        ),
        {"rows": 920},
        lambda path: {"rows": len(heart_disease.read(path))},
        check=heart_disease.read,
        fetch=(
            RemoteFile(
                "https://archive.ics.uci.edu/static/public/45/heart+disease.zip",
                "sha256:b17cd273da9ce1caa4710fce80227ea454d4dbf9fcbc8e6a9121672751563adc",
                "zip",
                "processed.*.data",
            ),
        ),
    ),
    DataSet(
        "tcga-brca",
        "breast cancer, six regions",
        tcga_brca.PLACES,
        "open; no attempt at re-identification",
        "by hand: brca.csv and centers.csv of FLamby (flamby/datasets/fed_tcga_brca on GitHub) in one folder",
        either(
            named(tcga_brca.PLACES[0]),
            table_with(*tcga_brca.COLUMNS),
            folder_with(tcga_brca.PATIENTS, tcga_brca.CENTERS),
        ),
        {"rows": 1_088},
        lambda path: {"rows": int(tcga_brca.read(path)["region"].isin(tcga_brca.REGIONS).sum())},
        check=tcga_brca.read,
    ),
)
CATALOGUE: dict[str, DataSet] = {known.name: known for known in _SETS}
