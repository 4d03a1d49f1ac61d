use std::num::NonZero;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::render::live::{LiveLines, ScreenSize};
use crate::testing::plain;

const UNSTYLED: Layout = Layout { width: 40, is_styled: false };

/// An answer with every kind of block.
const ANSWER: &str = "\
# Title

Some **strong** words and `code`,
then [a link](https://example.org/) and <https://ollm.example>.

1. First
2. Second with a text that is longer than its line
   - nested
     ```rust
     let a = 1;
     ```
   - other

3. Third

> A quote
>
> - [x] done

| Name | Size |
|------|-----:|
| a    |   12 |

```python
def f(x):
    return x  # why
```
---
The end.";

fn shown(text: &str, width: usize) -> String {
    plain(&render(text, Layout { width, is_styled: true }))
}

#[test]
fn every_kind_of_block_is_rendered() {
    let expect = "\
# Title

Some strong words and code,
then a link (https://example.org/) and
https://ollm.example.

1. First
2. Second with a text that is longer
   than its line
   - nested
     ```rust
     let a = 1;
     ```
   - other

3. Third

> A quote
>
> - [x] done

Name │ Size
─────┼─────
a    │   12

```python
def f(x):
    return x  # why
```
────────────────────────────────────────
The end.
";
    assert_eq!(shown(ANSWER, 40), expect);
}

#[test]
fn text_without_styles_keeps_its_marks() {
    let text = "**strong**, *soft*, ~~old~~ and `code`\n";
    assert_eq!(render(text, UNSTYLED), text);
}

#[test]
fn address_that_is_the_text_of_a_link_is_shown_once() {
    let check = |text: &str, expect: &str| {
        assert_eq!(render(text, UNSTYLED), expect);
        assert_eq!(shown(text, 40), expect);
    };
    check("see <https://a.example> there", "see https://a.example there\n");
    check("<a@b.example><c@b.example>", "a@b.examplec@b.example\n");
    check("see [b](http://b) there", "see b (http://b) there\n");
}

#[test]
fn lists_keep_their_numbers_and_blank_lines() {
    let check = |text: &str, expect: &str| assert_eq!(shown(text, 40), expect, "{text:?}");
    check("1. a\n1. b\n1. c", "1. a\n2. b\n3. c\n");
    check("8. a\n\n9. b\n10. c", "8. a\n\n9. b\n10. c\n");
    check("1. a\n\n```\nx\n```\n\n2. b", "1. a\n\n```\nx\n```\n\n2. b\n");
    check("- a\n- b\n1. c\n2. d", "- a\n- b\n1. c\n2. d\n");
    check("- a\n\n  b\n-\n- c", "- a\n\n  b\n-\n- c\n");
}

#[test]
fn nothing_that_a_terminal_obeys_is_left() {
    let check = |text: &str, expect: &str| assert_eq!(render(text, UNSTYLED), expect, "{text:?}");
    check("a\u{1b}[2Jb\u{1b}]0;owned\u{7}c", "abc\n");
    check("&#27;[31m &#x202e;b &#155;c", "[31m b c\n");
    check("[x](http://a&#27;b)", "x (http://ab)\n");
    check("```a&#27;b\n\u{9b}2Jc\n", "```a&#27;b\nc\n");
    check("<b>&#7;</b><br>c", "<b></b>\nc\n");
    check("a\u{0}\u{7f}\u{fffd}", "a\u{fffd}\n");
}

#[test]
fn code_is_not_wrapped_and_formulas_keep_their_brackets() {
    let code = format!("```sh\n{}\n```\n", "x ".repeat(40).trim_end());
    assert_eq!(shown(&code, 20), code);
    let formula = "\\(a_1\\) and \\[b\\]\n";
    assert_eq!(shown(formula, 40), formula);
    assert_eq!(shown("    indented\n", 40), "    indented\n");
}

#[test]
fn open_marks_have_their_look_before_they_end() {
    let open = |text: &str| {
        let mut stream = MarkdownStream::default();
        stream.push(text);
        let layout = Layout { width: 40, is_styled: true };
        assert!(stream.take_finished(layout).is_empty(), "{text}");
        stream.open_lines(layout).join("\n")
    };
    assert_eq!(open("a **bo"), "a \u{1b}[1mbo\u{1b}[0m");
    assert_eq!(open("a **bo**"), "a \u{1b}[1mbo\u{1b}[0m");
    assert_eq!(open("a `co"), "a \u{1b}[36mco\u{1b}[0m");
    assert_eq!(plain(&open("text\n--")), "text");
    assert_eq!(open("#"), "");
    assert_eq!(open("a **"), "a");
}

#[test]
fn finished_blocks_are_not_parsed_again() {
    let mut stream = MarkdownStream::default();
    let layout = Layout { width: 40, is_styled: true };
    for part in ["one\n\n", "two\n\n", "- a\n- b\n", "- c\n", "\n```\n", "x\n", "y\n", "```\n", "z"]
    {
        stream.push(part);
        drop(stream.take_finished(layout));
        assert!(stream.tail.len() <= 8, "{:?}", stream.tail);
    }
}

#[test]
fn long_text_is_the_same_at_once_and_line_by_line() {
    let layout = Layout { width: 40, is_styled: true };
    let line = "words of a long block, again and again\n";
    let mut text = line.repeat(3 * PARSED_BYTES / line.len());
    for _ in 0..=PARSED_BYTES / ANSWER.len() {
        text.push('\n');
        text.push_str(ANSWER);
        text.push('\n');
    }
    let mut stream = MarkdownStream::default();
    let mut lines = Vec::new();
    for line in text.split_inclusive('\n') {
        stream.push(line);
        lines.append(&mut stream.take_finished(layout));
    }
    lines.append(&mut stream.finish(layout));
    assert_eq!(render(&text, layout), lines.join("\n") + "\n");
}

/// Shows a text on a terminal as its pieces arrive; returns the lines of the scrollback and the screen.
fn on_terminal(pieces: &[&str], size: ScreenSize) -> Vec<String> {
    let number = |number: usize| NonZero::new(u16::try_from(number).unwrap()).unwrap();
    let columns = number(size.columns);
    let mut parser = vt100::Parser::new(number(size.rows), columns, 10_000);
    let layout = Layout { width: size.columns, is_styled: true };
    let (mut stream, mut live) = (MarkdownStream::default(), LiveLines::default());
    let mut write = |text: String| parser.process(text.replace('\n', "\r\n").as_bytes());
    for piece in pieces {
        stream.push(piece);
        let finished = stream.take_finished(layout);
        write(live.update(finished, stream.open_lines(layout), size));
    }
    write(live.update(stream.finish(layout), Vec::new(), size));
    let screen = parser.screen_mut();
    screen.set_scrollback(usize::MAX);
    let mut lines = Vec::new();
    for offset in (1..=screen.scrollback()).rev() {
        screen.set_scrollback(offset);
        lines.extend(screen.rows(0, columns.get()).next());
    }
    screen.set_scrollback(0);
    lines.extend(screen.rows(0, columns.get()));
    let mut lines: Vec<String> = lines.iter().map(|line| line.trim_end().to_owned()).collect();
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |at| at + 1));
    lines
}

/// Cuts a text into pieces of some characters each.
fn pieces<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for size in sizes.iter().cycle() {
        let Some((at, _)) = rest.char_indices().nth(*size) else { break };
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

#[test]
fn picture_at_the_end_of_a_row_erases_nothing() {
    // Terminals break a picture of two parts in its middle, or before it.
    let text = "```\n[r]: /u\n\n[a](http://b)let a = 1;👩\u{200d}💻 and more wordslet a = 1;";
    let size = ScreenSize { columns: 25, rows: 4 };
    assert_eq!(on_terminal(&pieces(text, &[1]), size), on_terminal(&[text], size));
}

#[test]
fn block_behind_the_definition_of_a_link_is_the_same_however_it_arrives() {
    let text = "word```rust\n\n[r]: /u\n2) word\n===\nlet a = 1;```rust\n";
    let size = ScreenSize { columns: 10, rows: 3 };
    assert_eq!(on_terminal(&pieces(text, &[1]), size), on_terminal(&[text], size));
}

#[test]
fn answer_is_the_same_however_it_arrives() {
    for (columns, rows) in [(80, 24), (40, 20), (20, 6)] {
        let size = ScreenSize { columns, rows };
        let whole = on_terminal(&[ANSWER], size);
        for chars in [1, 2, 3, 7, 50] {
            assert_eq!(on_terminal(&pieces(ANSWER, &[chars]), size), whole, "{columns}, {chars}");
        }
    }
}

/// Pieces of Markdown, whole ones and broken ones.
const FRAGMENTS: &[&str] = &[
    "word",
    " ",
    " and more words",
    "\n",
    "\n",
    "\n\n",
    "# ",
    "- ",
    "* ",
    "1. ",
    "2) ",
    "> ",
    "   ",
    "\t",
    "**",
    "*",
    "`",
    "```",
    "```rust\n",
    "```\n",
    "~~~\n",
    "let a = 1;",
    "| a | b |\n|---|--:|\n",
    "| c | d |\n",
    "|",
    "---\n",
    "===\n",
    "\\[",
    "<br>",
    "<div>\n",
    "&#27;[31m",
    "\u{1b}[2J",
    "[a](http://b)",
    "![i](x)",
    "[r]: /u\n",
    "日本語の文章",
    "مرحبا",
    "👩\u{200d}💻",
    "é",
    "averyveryverylongwordthathasnoend",
    "- [ ] ",
    "\r\n",
    "\\",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_give_the_same_screen(
        fragments in vec(select(FRAGMENTS), 1..60),
        sizes in vec(1_usize..12, 1..6),
        columns in 10_usize..60,
        rows in 3_usize..12,
    ) {
        let text = fragments.concat();
        let size = ScreenSize { columns, rows };
        prop_assert_eq!(on_terminal(&pieces(&text, &sizes), size), on_terminal(&[&text], size));
    }

    #[test]
    fn lines_have_no_control_characters_but_looks(fragments in vec(select(FRAGMENTS), 1..40), text in ".{0,80}") {
        let text = fragments.concat() + &text;
        let rendered = render(&text, Layout { width: 30, is_styled: true });
        let is_safe = |char: char| char == '\n' || !ollm_protocol::sanitize::is_unsafe(char);
        prop_assert!(plain(&rendered).chars().all(is_safe));
        prop_assert!(render(&text, UNSTYLED).chars().all(is_safe));
    }
}
