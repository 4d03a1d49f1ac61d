// The records of a session as the items of a conversation.

import type { Item } from '../viewMessages';
import type { Message, SessionRecord, ToolCall } from './protocol';
import { clean, clip, counted, grouped, modelName, oneLine, sized } from './text';

/** The characters of one text that the page shows. More of them make a page slow; an export has the whole text. */
export const SHOWN_CHARACTERS = 200_000;
/** The characters of a tool's arguments and result that the page shows. */
const SHOWN_TOOL_CHARACTERS = 4_000;
/** The end of an answer that is not complete, and how the page says so. */
const INCOMPLETE: Record<string, string> = {
  canceled: 'stopped',
  interrupted: 'interrupted',
  timeout: 'no more text arrived in time',
  length: 'the limit of the answer was reached',
};

/** Returns the items of a page of records, in order. */
export function itemsOf(records: SessionRecord[]): Item[] {
  return records.flatMap((record) => itemOf(record) ?? []);
}

/** Returns whether the last question has no complete answer, so that the model can be asked again. */
export function canRetry(records: SessionRecord[]): boolean {
  const last = records.filter((record) => record.message && record.message.role !== 'system').at(-1)?.message;
  if (!last) return false;
  return last.role !== 'assistant' || (last.finishReason ?? 'stop') in INCOMPLETE;
}

/** Returns the part of a text that is shown, cleaned, and the number of characters that are not. */
export function shown(text: string, limit = SHOWN_CHARACTERS): { text: string; omitted?: number } {
  const whole = clean(text);
  if (whole.length <= limit) return { text: whole };
  return { text: clip(whole, limit), omitted: whole.length - limit };
}

function itemOf(record: SessionRecord): Item | undefined {
  const key = `r${record.seq}`;
  const note = (text: string): Item => ({ key, kind: 'note', seq: record.seq, text });
  if (record.sizeBytes) {
    return note(`Record ${record.seq} has ${sized(record.sizeBytes)}. Export the session as a page to read it.`);
  }
  if (record.message) return messageItem(key, record.seq, record.message);
  if (record.toolCall) return toolItem(key, record.seq, record.toolCall);
  if (record.compaction) {
    const { tokensBefore, tokensAfter } = record.compaction;
    const change = tokensBefore && tokensAfter ? `: ${grouped(tokensBefore)} → ${grouped(tokensAfter)} tokens` : '';
    return note(`Older messages became notes for the model${change}. The session keeps every word.`);
  }
  if (record.branchSummary?.summary) return note(`Summary of another branch: ${oneLine(record.branchSummary.summary)}`);
  if (record.custom?.contextText) {
    return {
      key,
      kind: 'user',
      seq: record.seq,
      label: oneLine(record.custom.name),
      ...shown(record.custom.contextText),
    };
  }
  if (record.putBack) {
    const left = record.putBack.left?.length ?? 0;
    const rest = left ? `; ${counted(left, 'file')} stayed as they were` : '';
    return note(
      `${counted(record.putBack.files?.length ?? 0, 'file')} put back by ${oneLine(record.putBack.cause)}${rest}.`,
    );
  }
  return undefined;
}

function messageItem(key: string, seq: number, message: Message): Item | undefined {
  const texts = message.parts.map((part) => {
    if (part.type === 'text') return part.text;
    if (part.type === 'image') return `[an image, ${oneLine(part.mimeType)}]`;
    return part.type === 'toolCall' ? `[calls ${oneLine(part.name)}]` : '';
  });
  const thinking = message.parts.map((part) => (part.type === 'thinking' ? part.text : '')).join('');
  const text = shown(texts.filter(Boolean).join('\n\n'));
  if (message.role === 'user') return { key, kind: 'user', seq, ...text };
  if (message.role === 'tool') return { key, kind: 'tool', seq, label: oneLine(message.toolName ?? 'tool'), ...text };
  if (message.role === 'system') return { key, kind: 'note', seq, ...text };
  const item: Item = { key, kind: 'assistant', seq, label: modelName(message.model ?? ''), ...text };
  if (thinking) item.thinking = shown(thinking).text;
  const end = INCOMPLETE[message.finishReason ?? ''];
  if (end) item.footer = end;
  return item;
}

function toolItem(key: string, seq: number, call: ToolCall): Item {
  const { result } = call;
  const failed = result.success === false || result.error ? ', failed' : '';
  const exit = result.exitCode ? `, exit code ${result.exitCode}` : '';
  const output = result.displayContent ?? result.llmContent ?? '';
  const text = `${clip(JSON.stringify(call.args) ?? '', SHOWN_TOOL_CHARACTERS)}\n${output}${result.error ? `\n${result.error}` : ''}`;
  const writes = call.writes?.length
    ? `wrote ${call.writes
        .slice(0, 5)
        .map((write) => oneLine(write.path))
        .join(', ')}`
    : '';
  const more = (call.writes?.length ?? 0) > 5 ? ` and ${call.writes!.length - 5} more` : '';
  return {
    key,
    kind: 'tool',
    seq,
    label: `${oneLine(call.name)}${failed}${exit}`,
    ...shown(text, SHOWN_TOOL_CHARACTERS),
    ...(writes ? { footer: writes + more } : {}),
  };
}
