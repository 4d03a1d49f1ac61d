// Texts of models, sessions and tools as they are shown: without control characters, and not longer than needed.

// Control characters except tab and line feed, and the characters that reorder the text around them.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Removes what a terminal or an editor would execute or reorder; keeps lines and tabs. */
export function clean(text: string): string {
  return text.replace(/\r\n?/g, '\n').replace(CONTROL, '');
}

/** Returns a text on one line, without control characters. */
export function oneLine(text: string): string {
  return clean(text).replace(/\s+/g, ' ').trim();
}

/** Shortens a text to `limit` characters with an ellipsis; never cuts a character in two. */
export function clip(text: string, limit: number): string {
  if (text.length <= limit) return text;
  let end = Math.max(0, limit - 1);
  const code = text.charCodeAt(end - 1);
  if (code >= 0xd800 && code < 0xdc00) end -= 1;
  return `${text.slice(0, end).trimEnd()}…`;
}

/** Returns a number with separators of thousands. */
export function grouped(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');
}

/** Returns a count with its noun, such as `2 files`. */
export function counted(value: number, noun: string): string {
  return `${grouped(value)} ${noun}${value === 1 ? '' : 's'}`;
}

/** Returns a time before `now` in words, such as `5 min ago`, or the date of an older one. */
export function ago(at: string, now: number): string {
  const minutes = Math.floor((now - Date.parse(at)) / 60_000);
  if (Number.isNaN(minutes)) return '';
  if (minutes < 1) return 'now';
  if (minutes < 60) return `${minutes} min ago`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ago`;
  if (minutes < 7 * 24 * 60) return `${Math.floor(minutes / (24 * 60))} d ago`;
  return at.slice(0, 10);
}

/** Returns the name of a model for people: of one that is a file, the name of the file. */
export function modelName(model: string): string {
  const name = oneLine(model);
  return name.startsWith('/') ? name.slice(name.lastIndexOf('/') + 1) : name;
}

/** Returns a size in bytes for people. */
export function sized(bytes: number): string {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

/** Returns a text for notifications and lists of VS Code, which would make links and icons of some texts. */
export function inert(text: string): string {
  return oneLine(text).replaceAll('](', '] (').replaceAll('$(', '$ (');
}
