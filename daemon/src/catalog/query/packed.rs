//! Every statement on the tables of packed items: many items of one size to a row.

use rusqlite::{Connection, OptionalExtension, params};

/// Items in one row of a [`Packed`] table: rows of about 50 KB, so that a cold open reads few of them and an
/// append rewrites little.
pub(in crate::catalog) const BLOCK_ITEMS: u64 = 2_048;
/// Bits of a row's id that number the blocks of one session: 2^32 records in blocks of 2^11.
const BLOCK_BITS: u32 = 21;

/// The tables of packed items.
#[derive(Clone, Copy, Debug)]
pub(in crate::catalog) enum Packed {
    /// [`crate::session::index::IndexEntry`].
    Entries,
    /// [`crate::session::index::KeyEntry`].
    Keys,
}

/// Adds packed items of `size` bytes from the item numbered `first` on; only the last block is written again.
pub(in crate::catalog) fn append(
    conn: &Connection,
    table: Packed,
    num: i64,
    (first, size): (u64, usize),
    mut items: &[u8],
) -> rusqlite::Result<()> {
    let mut at = first;
    while !items.is_empty() {
        let in_block = at % BLOCK_ITEMS;
        let fits =
            usize::try_from(BLOCK_ITEMS - in_block).unwrap_or(usize::MAX).saturating_mul(size);
        let (now, later) = items.split_at(items.len().min(fits));
        let id = block_id(num, at / BLOCK_ITEMS);
        let mut packed = match in_block {
            0 => Vec::new(),
            _ => block(conn, table, id)?.unwrap_or_default(),
        };
        packed.truncate(usize::try_from(in_block).unwrap_or_default() * size);
        packed.extend_from_slice(now);
        conn.prepare_cached(match table {
            Packed::Entries => "INSERT OR REPLACE INTO entries (id, packed) VALUES (?1, ?2)",
            Packed::Keys => "INSERT OR REPLACE INTO keys (id, packed) VALUES (?1, ?2)",
        })?
        .execute(params![id, packed])?;
        at += (now.len() / size) as u64;
        items = later;
    }
    Ok(())
}

/// One block of packed items by its number; empty where there is none.
pub(in crate::catalog) fn block_of(
    conn: &Connection,
    table: Packed,
    num: i64,
    number: u64,
) -> rusqlite::Result<Vec<u8>> {
    Ok(block(conn, table, block_id(num, number))?.unwrap_or_default())
}

/// Gives the blocks of a session in order.
pub(in crate::catalog) fn each_block(
    conn: &Connection,
    table: Packed,
    num: i64,
    mut each: impl FnMut(&[u8]),
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(match table {
        Packed::Entries => "SELECT packed FROM entries WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
        Packed::Keys => "SELECT packed FROM keys WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
    })?;
    let mut rows = statement.query([block_id(num, 0), block_id(num + 1, 0) - 1])?;
    while let Some(row) = rows.next()? {
        each(row.get_ref(0)?.as_blob()?);
    }
    Ok(())
}

/// Removes the packed items of a session.
pub(super) fn remove(conn: &Connection, table: Packed, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(match table {
        Packed::Entries => "DELETE FROM entries WHERE id BETWEEN ?1 AND ?2",
        Packed::Keys => "DELETE FROM keys WHERE id BETWEEN ?1 AND ?2",
    })?
    .execute([block_id(num, 0), block_id(num + 1, 0) - 1])
    .map(drop)
}

fn block(conn: &Connection, table: Packed, id: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    conn.prepare_cached(match table {
        Packed::Entries => "SELECT packed FROM entries WHERE id = ?1",
        Packed::Keys => "SELECT packed FROM keys WHERE id = ?1",
    })?
    .query_row([id], |row| row.get(0))
    .optional()
}

const fn block_id(num: i64, number: u64) -> i64 {
    num << BLOCK_BITS | number.cast_signed()
}
