//! Numbers for people.

/// With separators: `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// With its noun, which gets an `s` where there is not exactly one: `1 message`, `12 messages`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Bytes in binary units: `1.5 MiB`.
#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
pub(crate) fn bytes(number: u64) -> String {
    let mut value = number as f64;
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { counted(number, "byte") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let check = |number, expect: &str| assert_eq!(grouped(number), expect);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(1_234_567, "1,234,567");
        assert_eq!(counted(1, "message"), "1 message");
        assert_eq!(counted(1200, "message"), "1,200 messages");
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(bytes(1023), "1,023 bytes");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }
}
