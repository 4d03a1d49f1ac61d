//! Lines that end between words at the width of the terminal. Pure.

use super::markdown::{columns_of, columns_of_styled};

/// The narrowest column of text: below it, a terminal's own line breaks are better.
const MIN_COLUMNS: usize = 20;

/// Wraps the lines of a text with styles; further lines begin as their first one, with `indent` more spaces. Lines with a
/// command to type, after `try:` or `or:`, stay whole, so that they can be copied.
pub(crate) fn wrap(text: &str, width: Option<usize>, indent: usize) -> String {
    let Some(width) = width.filter(|width| *width >= MIN_COLUMNS) else { return text.to_owned() };
    let lines: Vec<String> = text.split('\n').map(|line| wrap_line(line, width, indent)).collect();
    lines.join("\n")
}

fn wrap_line(line: &str, width: usize, indent: usize) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    let start = plain.trim_start_matches(' ');
    let is_command = start.starts_with("try: ") || start.starts_with("or: ");
    let indent = plain.len() - start.len() + indent;
    if is_command || columns_of(&plain) <= width || indent * 2 > width {
        return line.to_owned();
    }
    let (mut wrapped, mut column, mut is_first) = (String::new(), 0, true);
    for (at, word) in line.split(' ').enumerate() {
        let columns = columns_of_styled(word);
        if column + 1 + columns > width && !is_first && columns > 0 {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent;
        } else if at > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += columns;
        is_first &= columns == 0;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Style;

    #[test]
    fn static_text_is_indented_and_commands_stay_whole() {
        let bad = Style::Bad.paint("error:");
        let text = format!(
            "{bad} the model is not there at all\n  try: ollmctl chat --model fake:1b  # with it"
        );
        assert_eq!(
            wrap(&text, Some(24), 2),
            format!(
                "{bad} the model is not\n  there at all\n  try: ollmctl chat --model fake:1b  # with it"
            )
        );
        assert_eq!(wrap("- a list with some words", Some(20), 2), "- a list with some\n  words");
    }
}
