// The contents of files that the daemon keeps for undo, for a comparison before it puts them back.
//
// The protocol has no method that returns such a content, so it is read from the home: FORMAT.md, "Contents of files",
// documents the place. Nothing is written there, and without it a plan is shown without comparisons.

import * as fs from 'node:fs/promises';
import * as path from 'node:path';

/** Larger contents are not compared: an editor would be slow. */
const MAX_BYTES = 5 * 1024 * 1024;

/** Returns a kept content as text, or undefined if it is not there or too large. */
export async function keptContent(home: string, sessionId: string, hash: string): Promise<string | undefined> {
  if (!/^[0-9a-f-]{36}$/.test(sessionId) || !/^[0-9a-f]{64}$/.test(hash)) return undefined;
  try {
    const file = path.join(home, 'sessions', `${sessionId}.blobs`, hash);
    const { size } = await fs.stat(file);
    if (size > MAX_BYTES) return undefined;
    const bytes = await fs.readFile(file);
    return bytes.includes(0) ? `(a binary content of ${size} bytes)\n` : bytes.toString('utf8');
  } catch {
    return undefined;
  }
}
