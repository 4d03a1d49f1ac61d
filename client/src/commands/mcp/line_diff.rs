//! The difference of two texts that differ in one place, as people know it from `diff -u`.

/// The unchanged lines that are shown before and after the change.
const AROUND: usize = 3;

/// Returns the difference; a text that is `None` does not exist.
pub(super) fn diff(path: &str, old: Option<&str>, new: Option<&str>) -> String {
    let (old_lines, new_lines) = (lines(old), lines(new));
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(one, two)| one == two).count()
    };
    let first = same(&mut old_lines.iter().zip(&new_lines));
    let rest = (&old_lines[first..], &new_lines[first..]);
    let last = same(&mut rest.0.iter().rev().zip(rest.1.iter().rev()));
    let (removed, added) = (&rest.0[..rest.0.len() - last], &rest.1[..rest.1.len() - last]);
    let before = &old_lines[first.saturating_sub(AROUND)..first];
    let after = &old_lines[first + removed.len()..];
    let after = &after[..after.len().min(AROUND)];
    let name = |text: Option<&str>| if text.is_some() { path } else { "/dev/null" }.to_owned();
    let mut shown = format!("--- {}\n+++ {}\n", name(old), name(new));
    let range = |start: usize, n: usize| {
        let n = n + before.len() + after.len();
        format!("{},{n}", if n == 0 { 0 } else { start + 1 })
    };
    let start = first - before.len();
    shown.push_str(&format!(
        "@@ -{} +{} @@\n",
        range(start, removed.len()),
        range(start, added.len())
    ));
    for (sign, group) in [(' ', before), ('-', removed), ('+', added), (' ', after)] {
        for line in group {
            shown.push(sign);
            shown.push_str(line);
            if !line.ends_with('\n') {
                shown.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
    shown
}

fn lines(text: Option<&str>) -> Vec<&str> {
    text.map(|text| text.split_inclusive('\n').collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_the_changed_lines_and_three_around_them() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let new = "1\n2\n3\n4\nx\ny\n6\n7\n8\n";
        let expect = "--- f\n+++ f\n@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-5\n+x\n+y\n 6\n 7\n 8\n";
        assert_eq!(diff("f", Some(old), Some(new)), expect);
        assert_eq!(diff("f", None, Some("a\n")), "--- /dev/null\n+++ f\n@@ -0,0 +1,1 @@\n+a\n");
        let cut = "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n";
        assert_eq!(diff("f", Some("a"), Some("a\n")), cut);
    }
}
