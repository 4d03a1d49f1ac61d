#!/usr/bin/env python3
"""Prints the licenses of everything that is compiled into the two programs, with their texts, for a package.

The packages are those of `cargo tree` for a target, without tools of the build and of tests; the texts are the files that
the packages themselves bring. A text that several packages have is printed once. A package that brings no text is listed
with its authors.

    tests/licenses.py [TARGET] > LICENSES-OF-DEPENDENCIES
"""

import json
import pathlib
import subprocess
import sys

NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def cargo(*words):
    return subprocess.run(("cargo", *words), check=True, capture_output=True, text=True).stdout


def main():
    target = sys.argv[1:2]
    platform = [word for name in target for word in ("--filter-platform", name)]
    packages = json.loads(cargo("metadata", "--locked", "--format-version", "1", *platform))["packages"]
    tree = ["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    tree += [word for name in target for word in ("--target", name)]
    used = {tuple(line.split()[:2]) for line in cargo(*tree).splitlines() if line.strip()}
    texts, textless = {}, []
    print("ollm contains these packages, under these licenses:\n")
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']}"
        # Packages of this repository have no source.
        if package["source"] is None or (package["name"], "v" + package["version"]) not in used:
            continue
        print(f"  {name}: {package['license'] or 'see its text'}  {package['repository'] or ''}".rstrip())
        directory = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in directory.iterdir() if path.is_file())
        files = [path for path in files if path.name.lower().startswith(NAMES)]
        for path in files:
            texts.setdefault(path.read_text(errors="replace").strip(), []).append(name)
        if not files:
            authors = ", ".join(package["authors"]) or "its contributors"
            textless.append(f"  {name}: {package['license']}, by {authors}")
    print("\nThese of them bring no text of their license, which is among the texts of the others:\n")
    print("\n".join(textless))
    for text, names in texts.items():
        print(f"\n{'=' * 78}\n{', '.join(dict.fromkeys(names))}\n{'=' * 78}\n\n{text}")


main()
