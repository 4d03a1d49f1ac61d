//! Lines in which one bit changed. FORMAT.md, "Reading back".
//!
//! A write that was cut off leaves missing, zeroed or old bytes. It does not leave a line that differs from a record in
//! a single bit, so such a line was complete once: it is damage and not a torn tail, even if no later line says that it
//! was synced.

use super::v1;

/// The polynomial of CRC-32C, in the reflected order in which the checksum is computed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Maximum length of the bytes that are examined. It bounds the time, which is 8 steps for a byte, and the chance that
/// torn bytes look like one flipped bit, which is one in 2^32 for each bit.
pub(super) const MAX_BYTES: usize = 256 * 1024;

/// Returns the number of the record whose line becomes `bytes` when one bit of it is flipped, or `None` if there is
/// none. `bytes` may have several line breaks, because the flipped bit may have made one.
pub(super) fn flipped_record(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > MAX_BYTES {
        return None;
    }
    let content_len = bytes.len().checked_sub(v1::TRAILER_BYTES)?;
    let (content, trailer) = bytes.split_at(content_len);
    let crc = crc32c::crc32c(content);
    let expected = v1::trailer(crc);
    let flipped: u32 = trailer
        .iter()
        .zip(expected.as_bytes())
        .map(|(one, other)| (one ^ other).count_ones())
        .sum();
    let mut line = bytes.to_vec();
    if flipped == 1 {
        line[content_len..].copy_from_slice(expected.as_bytes());
    } else {
        let stated = v1::stated_crc(trailer)?;
        let (byte, bit) = flipped_position(crc ^ stated, content_len)?;
        line[byte] ^= 1 << bit;
    }
    v1::line_seq(&line)
}

/// Returns the byte and the bit in content of this length whose flip changes the checksum by `difference`.
fn flipped_position(difference: u32, len: usize) -> Option<(usize, usize)> {
    // The last bit changes the checksum by the polynomial, and each bit before it by one more step of the division.
    let mut step = POLYNOMIAL;
    for back in 0..len * 8 {
        if step == difference {
            return Some((len - 1 - back / 8, 7 - back % 8));
        }
        step = (step >> 1) ^ if step & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    None
}

/// Returns the length of the first of two lines that became one, because a bit of the line break between them flipped.
pub(super) fn joined_at(line: &[u8]) -> Option<usize> {
    let (mut crc, mut summed) = (0, 0);
    (v1::TRAILER_BYTES..line.len()).find(|end| {
        let content_len = end - v1::TRAILER_BYTES;
        let trailer = &line[content_len..*end];
        let has_break = (trailer[v1::TRAILER_BYTES - 1] ^ b'\n').count_ones() == 1;
        if !has_break || !v1::is_trailer_start(trailer) {
            return false;
        }
        // Each byte is summed once, however many places look like an end.
        crc = crc32c::crc32c_append(crc, &line[summed..content_len]);
        summed = content_len;
        let expected = v1::trailer(crc);
        trailer[..v1::TRAILER_BYTES - 1] == expected.as_bytes()[..v1::TRAILER_BYTES - 1]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line of a record that no writer makes and a reader accepts.
    fn line(seq: u64) -> Vec<u8> {
        let content = format!(
            "{{\"v\":1,\"seq\":{seq},\"parent\":null,\"durable\":null,\"at\":\"2026-01-27T10:00:00.000Z\",\
             \"type\":\"close\",\"close\":{{\"reason\":\"client\"}}"
        );
        format!("{content}{}", v1::trailer(crc32c::crc32c(content.as_bytes()))).into_bytes()
    }

    #[test]
    fn every_flipped_bit_is_recognized_and_two_are_not() {
        let line = line(7);
        assert_eq!(v1::line_seq(&line), Some(7));
        for at in 0..line.len() {
            for bit in 0..8 {
                let mut flipped = line.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(flipped_record(&flipped), Some(7), "byte {at} bit {bit}");
                flipped[(at + 5) % line.len()] ^= 4;
                assert_eq!(flipped_record(&flipped), None, "byte {at} bit {bit} and another");
            }
        }
        for zeros in [1, 8, 60] {
            let mut torn = line.clone();
            torn[20..20 + zeros].fill(0);
            assert_eq!(flipped_record(&torn), None);
        }
        assert_eq!(flipped_record(&line[..line.len() - 1]), None);
        assert_eq!(flipped_record(b""), None);
    }

    #[test]
    fn joined_lines_are_separated_at_the_flipped_line_break() {
        let (first, second) = (line(7), line(8));
        for bit in 0..8 {
            let mut joined = [first.clone(), second.clone()].concat();
            joined[first.len() - 1] ^= 1 << bit;
            assert_eq!(joined_at(&joined), Some(first.len()), "bit {bit}");
        }
        let with_gap = [first, b"x\n".to_vec(), second].concat();
        assert_eq!(joined_at(&with_gap), None);
    }
}
