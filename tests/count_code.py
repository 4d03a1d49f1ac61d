#!/usr/bin/env python3
"""Counts the lines and tokens of the code, by module.

Usage: tests/count_code.py [DIRECTORY]   (default: the repository of this script)

A line counts if it has a token. Macros and data files count; comments, blank lines and tests do not. Tests are
`tests/`, files named `tests.rs` or `testing.rs`, folders named `tests`, the simulator, the checks for fuzzing, and
items behind `#[cfg(test)]` or `#[cfg(any(test, fuzzing))]`. Benchmarks have a row of their own, outside of the sum.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
      | (?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))
      | (?P<string>[bc]?"(?:\\.|[^"\\])*")
      | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\])')
      | (?P<word>'?[^\W\d]\w*|\d[\w]*(?:\.\d\w*)?)
      | (?P<punct>::|->|=>|==|!=|<=|>=|&&|\|\||\.\.=|\.\.|[-+*/%^&|]=|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL,
)
TEST_ONLY = re.compile(r"#\[cfg\((?:test|fuzzing|any\(test, fuzzing\))\)\]")
CODE = {".rs", ".lua", ".sh"}
DATA = {".json", ".yaml", ".toml", ".txt", ".words", ".service", ".socket", ".plist"}


def without_tests(text):
    """Removes the items behind `#[cfg(test)]`, with their other attributes; comments must be gone."""
    while found := TEST_ONLY.search(text):
        end = found.end()
        depth = 0
        for token in TOKEN.finditer(text, found.end()):
            symbol = token.group()
            depth += symbol in ("{", "(", "[")
            depth -= symbol in ("}", ")", "]")
            end = token.end()
            if depth == 0 and (symbol in ("}", ";") or symbol == "," ):
                break
            if depth < 0:
                end = token.start()
                break
        text = text[: found.start()] + text[end:]
    return text


def count_rust(text):
    """Returns the lines with tokens, and the tokens. A string is one token on each of its lines."""
    blank = lambda match: "\n" * match.group().count("\n") if match.group("comment") else match.group()
    text = without_tests(TOKEN.sub(blank, text))
    lines, tokens = set(), 0
    line, position = 1, 0
    for token in TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        height = token.group().count("\n")
        lines.update(range(line, line + height + 1))
        tokens += height + 1
    return len(lines), tokens


def count_data(text):
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(lines), sum(len(re.findall(r"\w+|[^\w\s]", line)) for line in lines)


def area(path):
    parts = path.parts
    if "benches" in parts:
        return "benches"
    if parts[0] == "daemon" and len(parts) > 2:
        return "daemon/" + parts[2].removesuffix(".rs")
    if parts[0] == "client" and len(parts) > 3:
        return "client/" + parts[2]
    return parts[0] if len(parts) > 1 else "root"


def is_counted(path):
    parts = path.parts
    is_test = parts[0] in ("tests", ".github", ".ci") or "tests" in parts or "simulator" in parts[:3]
    is_test |= path.stem in ("tests", "testing", "fuzzing") or "fuzz_api" in parts or "fuzzing" in parts
    in_benches = "benches" in parts
    return (not is_test or in_benches) and (path.suffix in CODE | DATA) and path.name != "Cargo.lock"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    names = subprocess.run(["git", "-C", root, "ls-files"], check=True, capture_output=True, text=True).stdout
    sums = defaultdict(lambda: [0, 0, 0])
    for name in names.splitlines():
        path = Path(name)
        if not is_counted(path) or not (root / path).is_file():
            continue
        text = (root / path).read_text()
        lines, tokens = count_rust(text) if path.suffix == ".rs" else count_data(text)
        row = sums[area(path)]
        row[0], row[1], row[2] = row[0] + 1, row[1] + lines, row[2] + tokens
    print(f"{'module':24}{'files':>7}{'lines':>9}{'tokens':>10}")
    for name in sorted(sums):
        print(f"{name:24}{sums[name][0]:7}{sums[name][1]:9,}{sums[name][2]:10,}")
    total = [sum(row[at] for name, row in sums.items() if name != "benches") for at in range(3)]
    print(f"{'sum without benches':24}{total[0]:7}{total[1]:9,}{total[2]:10,}")


main()
