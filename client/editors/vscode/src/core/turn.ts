// A running turn: the events of `chat.send` or `chat.follow` as items of the conversation and as the phase in the window
// bar.

import type { Item } from '../viewMessages';
import { Failure, failureOf } from './failure';
import type { ChatEvent } from './protocol';
import { clean, clip, grouped, modelName, oneLine } from './text';
import { SHOWN_CHARACTERS } from './transcript';

/** The changes with an event. */
export interface TurnChange {
  /** A new item, or one that changed as a whole. */
  items?: Item[];
  /** A piece of an item's text. */
  delta?: { key: string; text?: string; thinking?: string };
  /** An item got the number of its record. */
  rekey?: { from: string; to: string };
  /** The turn was accepted: its message is on the disk. */
  accepted?: boolean;
  phase?: { text: string; expectedMs?: number };
  /** The records have something of the turn that its items have not. */
  recorded?: boolean;
  ended?: boolean;
}

let nextTurn = 1;

export class Turn {
  readonly items: Item[] = [];
  /** The error that ended the turn. */
  problem?: Failure;
  accepted = false;
  model: string;
  private readonly name = `turn${nextTurn++}`;
  private live?: Item;
  private nItems = 0;

  constructor(
    readonly text: string | undefined,
    model: string,
    /** Another client started the turn, or this one before its connection was lost. */
    readonly isJoined = false,
  ) {
    this.model = model;
  }

  /** Applies an event of the daemon. Unknown kinds change nothing. */
  apply(event: ChatEvent): TurnChange {
    switch (event.kind) {
      case 'accepted':
        return this.accept(event);
      case 'running':
        return this.join(event);
      case 'phase':
        return { phase: { text: phaseText(event), expectedMs: event.expectedMs } };
      case 'delta':
        return this.delta(event);
      case 'toolCalls':
        return this.isJoined ? this.forget() : { items: [...this.endAnswer(), this.note('The model looks at earlier messages.')] };
      case 'failover':
        return { items: [this.note(`${oneLine(event.from ?? '')} failed; ${oneLine(event.to ?? '')} is asked.`)] };
      case 'cut':
        return { items: [this.note(cutText(event))] };
      case 'done':
        return { ...this.finish(event.seq, finishText(event.finishReason)), ended: true };
      case 'error':
        return { ...this.fail(failureOf({ message: event.message, data: event.data })), ended: true };
      default:
        return {};
    }
  }

  /** Ends the turn without an event of the daemon. */
  fail(failure: Failure): TurnChange {
    const isStopped = failure.kind === 'canceled' && !failure.data.reason;
    const seq = typeof failure.data.seq === 'number' ? failure.data.seq : undefined;
    const change = this.finish(seq, isStopped ? 'stopped' : 'interrupted');
    if (isStopped) return change;
    this.problem = failure;
    return change;
  }

  private accept(event: ChatEvent): TurnChange {
    this.accepted = true;
    this.model = modelName(event.model ?? this.model);
    const key = event.seq === undefined ? `${this.name}.question` : `r${event.seq}`;
    const question: Item[] =
      this.text === undefined ? [] : [{ key, kind: 'user', seq: event.seq, text: clean(this.text) }];
    this.items.push(...question);
    return { accepted: true, items: [...question] };
  }

  /** Shows the turn as it is; the records have everything but the answer that is being written. */
  private join(event: ChatEvent): TurnChange {
    this.model = modelName(event.model ?? this.model);
    this.forget();
    const isWritten = event.answerSeq !== undefined || !(event.text || event.thinking);
    const change = isWritten ? {} : this.delta(event);
    return { ...change, accepted: true, recorded: true };
  }

  private forget(): TurnChange {
    this.items.length = 0;
    this.live = undefined;
    return { recorded: true };
  }

  private delta(event: ChatEvent): TurnChange {
    const started = this.live === undefined;
    const live = this.live ?? this.begin();
    const text = clean((event.text ?? '').replaceAll('\r', ''));
    const thinking = clean((event.thinking ?? '').replaceAll('\r', ''));
    const room = Math.max(0, SHOWN_CHARACTERS - live.text.length);
    const isOver = text.length > room;
    const wasOver = live.omitted !== undefined;
    live.text += isOver ? clip(text, room + 1).replace(/…$/, '') : text;
    if (isOver) live.omitted = (live.omitted ?? 0) + text.length - room;
    if (thinking) live.thinking = (live.thinking ?? '') + thinking;
    // The number of characters that are left out is shown once when it begins, and at the end.
    if (started || (isOver && !wasOver)) return { items: [live] };
    if (wasOver && !thinking) return {};
    return { delta: { key: live.key, ...(text && !isOver ? { text } : {}), ...(thinking ? { thinking } : {}) } };
  }

  private begin(): Item {
    this.live = { key: `${this.name}.${this.nItems++}`, kind: 'assistant', label: this.model, text: '', live: true };
    this.items.push(this.live);
    return this.live;
  }

  private endAnswer(): Item[] {
    const { live } = this;
    this.live = undefined;
    if (!live) return [];
    live.live = false;
    return [live];
  }

  private finish(seq: number | undefined, footer: string): TurnChange {
    const { live } = this;
    const items = this.endAnswer();
    if (!live) return { items };
    if (footer) live.footer = footer;
    if (seq === undefined) return { items };
    const rekey = { from: live.key, to: `r${seq}` };
    live.key = rekey.to;
    live.seq = seq;
    return { rekey, items };
  }

  private note(text: string): Item {
    const item: Item = { key: `${this.name}.${this.nItems++}`, kind: 'note', text };
    this.items.push(item);
    return item;
  }
}

/** Returns the item that shows a failure. */
export function problemItem(failure: Failure): Item {
  return {
    key: 'problem',
    kind: 'error',
    text: clean(failure.message),
    ...(failure.hint ? { hint: failure.hint } : {}),
  };
}

/** Returns a failure as a notice of the page. */
export function noticeOf(failure: Failure, prefix = ''): { text: string; hint?: string } {
  const text = prefix ? `${prefix}: ${oneLine(failure.message)}` : oneLine(failure.message);
  return { text, ...(failure.hint ? { hint: oneLine(failure.hint) } : {}) };
}

function phaseText(event: ChatEvent): string {
  switch (event.name) {
    case 'queued':
      return event.ahead ? `waiting for ${event.ahead} other ${event.ahead === 1 ? 'call' : 'calls'}` : 'waiting';
    case 'compacting':
      return 'compacting the conversation';
    case 'loading':
      return 'loading the model';
    case 'reading':
      return event.tokens ? `reading ${grouped(event.tokens)} tokens` : 'reading';
    case 'answering':
      return 'answering';
    default:
      return oneLine(event.name ?? '');
  }
}

function finishText(reason: string | undefined): string {
  return reason === 'length' ? 'the limit of the answer was reached' : '';
}

function cutText(event: ChatEvent): string {
  const { shownTokens = 0, totalTokens = 0 } = event;
  return `The message is longer than the window: the model reads ${grouped(shownTokens)} of its ${grouped(totalTokens)} tokens.`;
}
